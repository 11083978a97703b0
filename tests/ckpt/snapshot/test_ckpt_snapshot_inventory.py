"""A buffer takes only memory that stays, and shares that lie in it; from what nodes say it follows what can be had."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace

import pytest
from ckpt_memory_made import record
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.manifest import encode, shares
from transom_cli.ckpt.restore.memory import known
from transom_cli.ckpt.snapshot.record import Buffer, Record, Share, part

PAGE = 4096


def memory(size: int, *seals: int) -> int:
    fd = os.memfd_create("lent", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    for seal in seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    return fd


def share(*segments: tuple[int, int]) -> Share:
    return Share(3, "__0_0.distcp", sum(length for _, length in segments), "0" * 32, segments)


@pytest.mark.parametrize(("there", "told", "seals"), [(PAGE, PAGE, ()), (PAGE, 2 * PAGE, (fcntl.F_SEAL_SHRINK,))])
def test_memory_that_could_be_taken_away_is_not_taken(there: int, told: int, seals: tuple[int, ...]) -> None:
    fd = memory(there, *seals)
    with pytest.raises(ValueError, match="cannot shrink"):
        Buffer(fd, told)
    os.close(fd)


@pytest.mark.parametrize("segment", [(0, PAGE + 1), (PAGE, 1), (-1, 1), (5, -5)])
def test_a_share_beyond_its_memory_is_refused(segment: tuple[int, int]) -> None:
    buffer = Buffer(memory(PAGE, fcntl.F_SEAL_SHRINK), PAGE)
    with pytest.raises(ValueError):
        buffer.holds(share(segment))
    assert buffer.share is None
    buffer.holds(share((0, PAGE)))
    buffer.close()


def test_segments_make_up_the_size() -> None:
    with pytest.raises(ValueError, match="its segments are not its size"):
        Share(3, "__0_0.distcp", 10, "0" * 32, ((0, 4), (8, 5)))


@given(st.lists(st.binary(max_size=6), max_size=5), st.data())
def test_a_part_is_that_of_the_whole(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    start = data.draw(st.integers(0, len(whole)))
    size = data.draw(st.integers(0, len(whole) - start))
    views = [memoryview(piece) for piece in pieces]
    assert b"".join(part(views, start, size)) == whole[start : start + size]
    for bad in ((start, len(whole) - start + 1), (-1, 1), (0, -1)):
        with pytest.raises(ValueError):
            part(views, *bad)


def made(step: int, attempt: str = "7.0.0", created: str = "2026-03-04T00:00:00+00:00") -> Record:
    one = record(step, 2)
    return replace(one, manifest=encode(replace(one.read, attempt=attempt, created=created)))


def rows(one: Record, *ranks: int) -> list[list[object]]:
    manifest = one.read
    return [[manifest.step, entry.name, entry.xxh3_128] for n, entry in enumerate(shares(manifest)) if n in ranks]


def test_a_step_is_there_when_each_share_is_held_somewhere() -> None:
    one = made(5)
    (found,) = known([one, made(5)], [*rows(one, 0), *rows(one, 1)])
    assert (found.step, found.missing) == (5, ())
    (found,) = known([one], rows(one, 0))
    assert found.missing == (shares(one.read)[1].name,)


def test_a_share_with_another_checksum_or_of_another_step_counts_for_nothing() -> None:
    one = made(5)
    wrong = [[5, entry.name, "f" * 32] for entry in shares(one.read)] + rows(made(4), 0, 1)
    (found,) = known([one], wrong)
    assert len(found.missing) == 2


def test_the_newest_comes_first_and_of_one_step_the_latest_made() -> None:
    old, new, again, later = made(4), made(5), made(5, "7.1.0"), made(5, "7.1.0", "2026-03-05T00:00:00+00:00")
    found = known([new, again, old, later], [])
    assert [one.record for one in found] == [later, again, new, old]
