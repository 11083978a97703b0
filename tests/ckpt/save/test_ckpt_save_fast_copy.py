"""The copy with several threads, against Python's own slices."""

from __future__ import annotations

import ctypes
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.ckpt.save.fast_copy import Copier, Piece, split

SPACE = 3 << 20


def buffers(seed: int) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    return ctypes.create_string_buffer(SPACE), ctypes.create_string_buffer(random.Random(seed).randbytes(SPACE), SPACE)


def layout(draws: random.Random, pieces: int) -> list[tuple[int, int, int]]:
    """Offsets to, offsets from, sizes; of every alignment, without overlap."""
    found, to = [], draws.randrange(70)
    for _ in range(pieces):
        size = draws.choice((0, 1, 63, 64, 65, 2047, 2048, 2049, 4096, 70_001, 400_000))
        if to + size > SPACE:
            break
        found.append((to, draws.randrange(SPACE - size), size))
        to += size + draws.randrange(70)
    return found


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_byte_arrives_and_no_other_is_touched(threads: int) -> None:
    copier = Copier(threads)
    for seed in range(20):
        to, source = buffers(seed)
        pieces = layout(random.Random(seed), 60)
        wanted = bytearray(SPACE)
        for at, start, size in pieces:
            wanted[at : at + size] = source.raw[start : start + size]
        base, start = ctypes.addressof(to), ctypes.addressof(source)
        copier.copy([(base + at, start + first, size) for at, first, size in pieces])
        assert to.raw == bytes(wanted)
    copier.close()


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)), max_size=30), st.integers(1, 8))
@settings(deadline=None)
def test_split_keeps_order_and_balances_shares(drawn: list[tuple[int, int]], shares: int) -> None:
    pieces: list[Piece] = []
    at = 0
    for gap, size in drawn:
        at += gap
        pieces.append((at, at + (1 << 40), size))
        at += size
    lists = split(pieces, shares)
    assert len(lists) <= shares
    joined: list[list[int]] = []
    for to, source, size in (piece for found in lists for piece in found):
        assert source == to + (1 << 40) and size > 0
        if joined and joined[-1][0] + joined[-1][1] == to:
            joined[-1][1] += size
        else:
            joined.append([to, size])
    whole: list[list[int]] = []
    for to, _, size in pieces:
        if size and whole and whole[-1][0] + whole[-1][1] == to:
            whole[-1][1] += size
        elif size:
            whole.append([to, size])
    assert joined == whole
    total = sum(size for _, _, size in pieces)
    assert all(sum(piece[2] for piece in found) <= total / shares + shares * 64 + 64 for found in lists)


def test_two_threads_meet_at_a_cache_line() -> None:
    (first, second) = split([(64 * 1000 + 8, 5, 1_000_003)], 2)
    assert second[0][0] % 64 == 0 and first[0][2] + second[0][2] == 1_000_003
