"""The file of all heartbeat tables: what is written is read, and nothing else."""

from __future__ import annotations

import random

import pytest

from transom_cli.heartbeat.aggregate import Part, decode_all, encode_all
from transom_cli.heartbeat.table import BadTable, NodeTable, RankBeat, encode


def table(node: str, ranks: int, seq: int = 7) -> NodeTable:
    beats = tuple(RankBeat(r, 0, 5, 6, 0.5, None, "step", 100 + r, "R") for r in range(ranks))
    return NodeTable(node, "7.0", seq, beats, alarms=3)


def test_what_is_written_is_read() -> None:
    tables = [table("n1", 8), table("a-node-with-a-long-name", 0), table("n3", 1, 9)]
    parts = [Part(encode(t), 0.25 * n, tuple(0.5 * r.rank for r in t.ranks)) for n, t in enumerate(tables)]
    number, heard = decode_all(encode_all(1 << 40, parts))
    assert number == 1 << 40 and [one.table for one in heard] == tables
    assert [one.age for one in heard] == [0.0, 0.25, 0.5] and heard[0].still == tuple(0.5 * r for r in range(8))
    assert decode_all(encode_all(0, ())) == (0, ())


def test_damage_is_noticed() -> None:
    data = encode_all(3, [Part(encode(table("n1", 8)), 0.0, (0.0,) * 8)])
    chance = random.Random(7)
    for _ in range(200):
        at = chance.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        for spoilt in (damaged, data[:at]):
            with pytest.raises(BadTable):
                decode_all(spoilt)
    with pytest.raises(BadTable):
        decode_all(encode(table("n1", 8)))
