"""Small parts of other ranks' shares come from those ranks: no share is read twice for a few bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.names import data_name, rank_of_data
from transom_cli.ckpt.restore.read_plan import SMALL, Object, Part, Piece, Wanted, divide, exchange


class Ranks:
    """As many ranks as threads, which meet in `gather`."""

    def __init__(self, size: int) -> None:
        self.size, self._values, self._meet = size, [None] * size, threading.Barrier(size, timeout=20)

    def of(self, rank: int) -> Any:
        meeting = self

        class One:
            size = meeting.size

            def gather(self, value: Any) -> list[Any]:
                meeting._values[rank] = value
                meeting._meet.wait()
                found = list(meeting._values)
                meeting._meet.wait()
                return found

        one: Any = One()
        one.rank = rank
        return one

    def run(self, act: Callable[[Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as pool:
            tried = [pool.submit(act, self.of(rank)) for rank in range(self.size)]
            return [one.exception() or one.result() for one in tried]


def whole(length: int) -> Piece:
    return Piece(MetadataIndex("w"), torch.zeros(1), 0, length)


def test_large_own_and_unowned_parts_are_read_locally() -> None:
    wanted = {
        data_name(0): Wanted([whole(SMALL)], []),
        data_name(1): Wanted([whole(10)], [Object("k", 10, 5)]),
        data_name(2): Wanted([whole(SMALL)], [Object("k", SMALL, 1)]),
        data_name(7): Wanted([whole(1)], []),
        "other.bin": Wanted([whole(1)], []),
    }
    near, far = divide(wanted, Ranks(4).of(1))
    assert sorted(far) == [data_name(0)]
    assert {**near, **far} == wanted


def test_each_part_is_read_once_and_sent_to_all_ranks_that_want_it() -> None:
    served: list[tuple[int, Part]] = []

    def act(ranks: Any) -> Any:
        def serve(part: Part) -> bytes:
            served.append((ranks.rank, part))
            return b"%d:%d" % (ranks.rank, part[1])

        asked = [(data_name(n), start, 3) for n in range(3) if n != ranks.rank for start in (0, 100)]
        found = exchange(asked, ranks, serve)
        return {part: found[part] for part in asked}

    for rank, found in enumerate(Ranks(3).run(act)):
        assert found == {
            (data_name(n), start, 3): b"%d:%d" % (n, start) for n in range(3) if n != rank for start in (0, 100)
        }
    assert sorted(served) == [(n, (data_name(n), start, 3)) for n in range(3) for start in (0, 100)]


def test_who_cannot_serve_is_told_in_its_own_words_to_those_that_need_it() -> None:
    def act(ranks: Any) -> Any:
        def serve(part: Part) -> bytes:
            raise OSError(5, "Input/output error")

        asked = [(data_name(0), 0, 3)] if ranks.rank == 1 else []
        return exchange(asked, ranks, serve)

    first, second, third = Ranks(3).run(act)
    assert first == third == {}
    assert isinstance(second, OSError)
    assert "__0_0.distcp: Input/output error" in str(second)


@pytest.mark.parametrize("name", ["__01_0.distcp", "__1_1.distcp", "__1_0.distcp.x", "1_0.distcp", ".metadata"])
def test_names_that_are_no_ranks(name: str) -> None:
    assert rank_of_data(name) is None
    assert rank_of_data(data_name(31)) == 31
