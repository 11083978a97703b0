"""Folding: multiples of bytes are added to others, and lost columns come back."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
import threading
import time
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.ckpt.snapshot import coder as module
from transom_cli.ckpt.snapshot.coder import coefficient, fold, multiples, solve


def plain(into: bytes, data: bytes, factor: int) -> bytes:
    changed = bytes(a ^ b for a, b in zip(into, data.translate(multiples(factor)), strict=False))
    return changed + into[len(data) :]


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 255), st.integers(0, 70), st.integers(0, 70))
def test_what_is_folded_is_the_multiple_and_no_other_byte(
    data: bytes, more: int, factor: int, to: int, start: int
) -> None:
    """At any address, of any length, from memory that may not be written."""
    into = random.Random(more).randbytes(to + len(data) + more)
    buffer, source = bytearray(into), memoryview(bytes(start) + data).toreadonly()[start:]
    fold(memoryview(buffer)[to:], source, factor)
    assert bytes(buffer) == into[:to] + plain(into[to:], data, factor)
    assert bytes(source) == data


@pytest.mark.parametrize("size", [(256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1_000_003])
@pytest.mark.parametrize("factor", [1, 2, 255])
def test_many_blocks(size: int, factor: int) -> None:
    data, into = random.Random(size).randbytes(size), random.Random(factor).randbytes(size + 5)
    buffer = bytearray(into)
    fold(memoryview(buffer), memoryview(data), factor)
    assert buffer == plain(into, data, factor)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_lost_chunks_come_back_from_pieces_in_any_order(k: int, m: int, draws: random.Random) -> None:
    size = draws.randrange(1, 500)
    data = [draws.randbytes(size) for _ in range(k)]
    terms = [(row, column, coefficient(row, column, k)) for row in range(m) for column in range(k)]
    parity = folded(data, terms, [bytearray(size) for _ in range(m)], draws)
    for many in range(m + 1):
        for gone in combinations(range(k + m), many):
            lost = [column for column in gone if column < k]
            rows = [row for row in range(m) if k + row not in gone][: len(lost)]
            left = [b"?" * size if column in lost else data[column] for column in range(k)] + parity
            terms = [
                (i, source, factor)
                for i, recipe in enumerate(solve(k, lost, rows))
                for source, factor in (*recipe.columns, *((k + row, factor) for row, factor in recipe.rows))
            ]
            found = folded(left, terms, [bytearray(size) for _ in lost], draws)
            assert found == [data[column] for column in lost], gone


def folded(
    sources: list[bytes],
    terms: list[tuple[int, int, int]],
    into: list[bytearray],
    draws: random.Random,
) -> list[bytes]:
    """All (target, source, coefficient), each cut into a few pieces, all pieces shuffled."""
    pieces = []
    for target, source, factor in terms:
        size = len(sources[source])
        edges = sorted({0, size, *(draws.randrange(size + 1) for _ in range(3))})
        pieces += [(target, source, factor, a, b) for a, b in pairwise(edges)]
    draws.shuffle(pieces)
    for target, source, factor, a, b in pieces:
        fold(memoryview(into[target])[a:], memoryview(sources[source])[a:b], factor)
    return [bytes(found) for found in into]


@pytest.mark.parametrize(
    ("into", "data", "factor", "told"),
    [
        (memoryview(bytearray(3)), memoryview(b"four"), 1, "4 bytes do not fold into 3"),
        (memoryview(bytes(4)), memoryview(b"four"), 1, "memory that may be written"),
        (memoryview(bytearray(8))[::2], memoryview(b"four"), 1, "in one piece"),
        (memoryview(bytearray(8)), memoryview(b"four")[::-1], 1, "in one piece"),
        (memoryview(bytearray(8)), memoryview(b"four"), 256, "256 is not a byte"),
        (memoryview(bytearray(8)), memoryview(b"four"), -1, "-1 is not a byte"),
    ],
)
def test_what_cannot_be_folded_is_refused(into: memoryview, data: memoryview, factor: int, told: str) -> None:
    before = bytes(into)
    with pytest.raises(ValueError, match=told):
        fold(into, data, factor)
    assert bytes(into) == before


def test_nothing_is_held_afterwards() -> None:
    """A mapping that is folded from and into can be closed at once."""
    with mmap.mmap(-1, 4096) as one, mmap.mmap(-1, 4096) as other:
        one[:] = b"\x05" * 4096
        with memoryview(one) as data, memoryview(other) as into:
            fold(into, data, 3)
        assert other[:] == b"\x0f" * 4096


def test_other_threads_run_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that counts, and yields after each, gets on during a fold in one step. With the GIL held it would not
    but for a few times, before the step and after it."""
    monkeypatch.setattr(module, "_BLOCK", 16 << 20)
    into, data = memoryview(bytearray(16 << 20)), memoryview(bytes(16 << 20))
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        most, deadline = 0, time.monotonic() + 30  # on a busy machine it waits for a processor meanwhile
        while most <= 20 and time.monotonic() < deadline:
            before = counted
            fold(into, data, 2)
            most = max(most, counted - before)
    finally:
        stop.set()
        thread.join()
    assert most > 20


def test_without_numpy_parity_is_refused_with_a_hint() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from transom_cli.ckpt.snapshot import coder\n"
        "try:\n    coder.fold(memoryview(bytearray(1)), memoryview(b'1'), 1)\n"
        "except coder.NoCoder as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Nothing here can compute parity\n  numpy cannot be loaded: ")
    assert "hint: `pip install numpy`" in done.stdout
