from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.table import PROCS, BadTable, NodeTable, RankBeat, decode, encode

i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-1, 2**63 - 1)
finite = st.floats(allow_nan=False)
rows = st.builds(
    RankBeat,
    rank=i32,
    launch=i32,
    step=i64,
    count=st.integers(0, 2**63 - 1),
    since_start=st.booleans(),
    age=finite,
    loss=st.none() | finite,
    phase=st.sampled_from(rec.PHASES),
    pid=i32,
    proc=st.sampled_from(PROCS),
)
names = st.text(st.characters(codec="utf-8"), max_size=40)
tables = st.builds(
    NodeTable,
    node=names,
    attempt=names,
    seq=st.integers(0, 2**64 - 1),
    ranks=st.lists(rows, max_size=6).map(tuple),
    closed=st.booleans(),
)
ONE = NodeTable("gpu001", "12.0", 7, (RankBeat(3, 0, 41, 42, 0.5, 2.25, "step", 4711, "S"),))


@given(tables)
def test_table_round_trip(table: NodeTable) -> None:
    assert decode(encode(table)) == table


def test_any_single_changed_byte_is_noticed() -> None:
    data = encode(ONE)
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            with pytest.raises(BadTable):
                decode(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_any_cut_or_growth_is_noticed() -> None:
    data = encode(ONE)
    for cut in range(len(data)):
        with pytest.raises(BadTable):
            decode(data[:cut])
    with pytest.raises(BadTable):
        decode(data + b"\0")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_a_bad_table_and_nothing_else(data: bytes) -> None:
    with pytest.raises(BadTable):
        decode(data)


@pytest.mark.parametrize("nan", [math.nan, -math.nan, rec.NO_LOSS, rec.NAN_LOSS])
def test_nan_loss_differs_from_no_loss(nan: float) -> None:
    table = NodeTable("n", "1.0", 1, (RankBeat(0, 0, 1, 1, 0.0, nan, "step", 1, "R"),))
    loss = decode(encode(table)).ranks[0].loss
    assert loss is not None and math.isnan(loss)
    assert decode(encode(NodeTable("n", "1.0", 1, (table.ranks[0]._replace(loss=None),)))).ranks[0].loss is None


def test_an_older_reader_takes_every_nan_for_no_loss() -> None:
    for bits in (rec.NO_LOSS, rec.NAN_LOSS):
        assert math.isnan(struct.unpack("<d", struct.pack("<d", bits))[0])


def test_values_that_do_not_fit_a_table_are_refused() -> None:
    for bad in (RankBeat(0, 0, 1, 1, 0.0, None, "lunch", 1, "R"), RankBeat(0, 0, 1, 1, 0.0, None, "step", 1, "Q")):
        with pytest.raises(ValueError):
            encode(NodeTable("n", "1.0", 1, (bad,)))


def image(*steps: int) -> bytearray:
    """A beat file after these steps, written as the trainer writes it."""
    data = bytearray(rec.SIZE)
    record = rec.Record(5, 1, 99)
    for seq, step in enumerate(steps):
        record.seq, record.step = seq, step
        at, body = rec.slot(record)
        data[at : at + len(body)] = body
    return data


def test_the_newest_slot_is_read() -> None:
    for steps in ((7,), (7, 8), (7, 8, 9)):
        found = rec.newest(bytes(image(*steps)))
        assert found is not None and (found.rank, found.launch, found.step) == (5, 1, steps[-1])
    assert rec.newest(bytes(rec.SIZE)) is None


def test_interrupted_write_leaves_the_previous_beat() -> None:
    before, after = image(7, 8), image(7, 8, 9)  # step 9 goes where step 7 was
    for done in range(rec.BODY + rec.CHECK.size):
        found = rec.newest(bytes(after[:done] + before[done:]))
        assert found is not None and found.step in (8, 9)
