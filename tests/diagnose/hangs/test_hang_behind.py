"""Which ranks stay behind in a communicator, by two answers of NCCL's RAS."""

from __future__ import annotations

import pytest
from ras_answers import BEHIND, HEAD, SILENT, answer, comm

from transom_cli.diagnose.hangs.behind import Behind, behind, lasting
from transom_cli.diagnose.hangs.ras import parse

HERE = {rank: 100 + rank for rank in range(4)}  # the process IDs of the first node


def of(said: str, now: float = 0.0, pids: dict[int, int] | None = None, world: int = 8) -> tuple[Behind, ...]:
    return behind(parse(said), HERE if pids is None else pids, world, now)


def counts(late: int, others: int, rank: int = 5) -> str:
    return answer(comm({n: late if n == rank else others for n in range(8)}))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (counts(1204, 1205), "0x9c1b (8 ranks): 1,204 AllReduce operations, others 1,205"),
        (HEAD.format("MISMATCH") + BEHIND, "9c1bcf6fe3a5c2b1 (8 ranks): 6,649 AllReduce operations, others 6,650"),
    ],
)
def test_rank_of_the_job(said: str, words: str) -> None:
    assert [one.words for one in of(said)] == [f"rank 5 is behind in communicator {words}"]


@pytest.mark.parametrize("said", [counts(9, 9), HEAD.format("INCOMPLETE") + SILENT, "", "no answer {"])
def test_same_counts_silent_ranks_and_no_answer_show_nothing(said: str) -> None:
    assert of(said) == ()


def test_ranks_of_another_communicator_are_counted_within_it() -> None:
    (one,) = of(answer(comm({4: 7, 5: 6})))
    assert one.words.startswith("communicator rank 1 (process 105 on 10.0.0.4) is behind in communicator 0x9c1b (2 r")
    (one,) = of(answer(comm({4: 6, 5: 6, 6: 7})))
    assert one.words.startswith("communicator ranks 0, 1 are behind")


def test_process_ids_that_number_the_ranks_otherwise_count_more() -> None:
    (one,) = of(counts(4, 5, rank=1), pids={0: 101, 1: 100, 2: 102, 3: 103})
    assert one.words.startswith("communicator rank 1 (process 101 on 10.0.0.3) is behind")


def test_the_fewest_ranks_come_first_and_other_counts_are_no_one_count() -> None:
    found = of(answer(comm({0: 3, 1: 3, 2: 4}, name="0xa"), comm({0: 1, 1: 2, 2: 3}, name="0xb")))
    assert [one.communicator for one in found] == ["0xb", "0xa"] and found[0].words.endswith("others up to 3")


@pytest.mark.parametrize(
    ("later", "since"),
    [
        (counts(1204, 1205), 0.0),
        (counts(1204, 1300), 0.0),
        (counts(1205, 1206), 40.0),
        (counts(1204, 1205, rank=6), 40.0),
    ],
    ids=["the same", "the others continued", "it continued", "another rank"],
)
def test_only_the_same_ranks_with_the_same_count_last(later: str, since: float) -> None:
    (one,) = lasting(of(counts(1204, 1205)), of(later, now=40.0))
    assert one.since == since
    assert lasting((), (one,)) == (one,), "after an answer without it, it begins again"
