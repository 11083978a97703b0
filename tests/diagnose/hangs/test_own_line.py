"""The line of the training in which hung ranks are, from their stacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_hang_syndromes import flights, ranks

from transom_cli.core.stacks import parse
from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs.reader import read_hang
from transom_cli.diagnose.hangs.stacks import Kind, place
from transom_cli.diagnose.hangs.syndromes import classify
from transom_cli.supervise.launcher.executor import verdict_of

HEAD = 'Process 7: python train.py\nPython v3.11.7 (x)\n\nThread 7 (idle): "MainThread"\n'
LOADER = (
    "poll (libc.so.6) < _PollLikeSelector.select (selectors.py:415) < wait (multiprocessing/connection.py:947) < "
    "Queue.get (multiprocessing/queues.py:113) < _try_get_data (torch/utils/data/dataloader.py:1291) < "
    "main (train.py:37) < <module> (train.py:51)"
)


def stack(calls: str) -> str:
    return HEAD + "".join(f"    {call}\n" for call in calls.split(" < "))


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ("clock_nanosleep (libc.so.6) < get_batch (hang.py:13) < <module> (hang.py:18)", "get_batch (hang.py:13)"),
        ("wait (threading.py:320) < get (queue.py:171) < batches (data.py:9)", "batches (data.py:9)"),
        ("all_reduce (torch/distributed/distributed_c10d.py:2501) < <module> (train.py:4)", "<module> (train.py:4)"),
        (LOADER, "main (train.py:37)"),
        ("0x7f78 (libc.so.6) < backward (torch/autograd/__init__.py:395)", ""),
    ],
)
def test_the_innermost_call_that_is_no_librarys(calls: str, line: str) -> None:
    assert place(parse(stack(calls)).main).own_line == line


def test_ranks_that_all_wait_for_their_data_loaders_are_no_communication_hang(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank-{rank}.stack.txt").write_text(stack(LOADER))
    found = read_hang(tmp_path)
    said = "non-communication hang: all ranks are in the data loader; their line is main (train.py:37)"
    assert (found[0].category, found[0].evidence[0], found[0].culprits) == (Category.DATA_LOADER, said, ())
    verdict = verdict_of(found)
    assert verdict.words[0].startswith(said), "a person sees it"
    assert (verdict.nodes, verdict.ranks) == ((), ()), "nobody is to blame"


def test_line_of_a_worker_of_the_data_loader_is_shown(tmp_path: Path) -> None:
    """A forked worker's stack contains that of its parent."""
    parent = "main (train.py:37) < <module> (train.py:51)"
    work = "fetch (torch/utils/data/_utils/fetch.py:54) < _worker_loop (torch/utils/data/_utils/worker.py:374)"
    idle = f"get (multiprocessing/queues.py:113) < _worker_loop (torch/utils/data/_utils/worker.py:360) < {parent}"
    busy = f"clock_nanosleep (libc.so.6) < __getitem__ (data.py:10) < {work} < {parent}"
    (tmp_path / "rank-0.stack.txt").write_text(stack("all_reduce (torch/distributed/distributed_c10d.py:9)"))
    (tmp_path / "rank-2.stack.txt").write_text(stack("all_reduce (torch/distributed/distributed_c10d.py:9)"))
    (tmp_path / "rank-1.stack.txt").write_text("\n".join((stack(LOADER), stack(idle), stack(busy))))
    (found,) = read_hang(tmp_path)
    assert [one.rank for one in found.culprits] == [1]
    assert found.evidence[0].endswith("the others wait; its line is __getitem__ (data.py:10), in a worker")


def test_line_of_the_rank_that_did_not_make_the_call_is_in_the_first_sentence() -> None:
    """By flight recorders; the stacks only show where that rank is."""
    made = [replace(one, stand=replace(one.stand, place=replace(one.stand.place, own_line=f"f (t.py:{n})")))
            for n, one in enumerate(ranks(Kind.SLEEP))]  # fmt: skip
    found = classify(made, flights(3, 4, 3))
    assert found is not None and found.ranks == (2,)
    assert found.reasons[0].endswith("; its line is f (t.py:2)") and "line is" not in "".join(found.reasons[1:])


def test_ranks_that_all_wait_for_each_other_are_not_blamed_on_a_line(tmp_path: Path) -> None:
    for rank in range(2):
        calls = "all_reduce (torch/distributed/distributed_c10d.py:9) < step (train.py:9)"
        (tmp_path / f"rank-{rank}.stack.txt").write_text(stack(calls))
    assert verdict_of(read_hang(tmp_path)).words == ()
