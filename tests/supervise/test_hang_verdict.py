"""The launcher's verdict on a hang: short, in time, and robust against any evidence file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category, Clue, Culprit
from transom_cli.supervise.launcher import executor
from transom_cli.supervise.launcher.executor import HangVerdict, hang_words, judge_hang, verdict_of

STACK = 'Thread 1 (idle): "MainThread"\n    {}\n    step (train.py:9)\n'


def test_who_the_others_wait_for(tmp_path: Path) -> None:
    for rank in range(4):
        where = "__next__ (torch/utils/data/dataloader.py:708)"
        other = "all_reduce (torch/distributed/distributed_c10d.py:9)"
        (tmp_path / f"rank-{rank}.stack.txt").write_text(STACK.format(where if rank == 2 else other))
    first, second = judge_hang(tmp_path).words
    said = "rank 2 is in the data loader, the others wait; its line is step (train.py:9)"
    assert first == f"non-communication hang: {said} (confidence 0.85)"
    assert second.startswith("ranks 0, 1, 3 are in a collective: all_reduce (")


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    assert judge_hang(tmp_path) == judge_hang(tmp_path / "none") == verdict_of(()) == HangVerdict()
    assert hang_words((Clue("stacks", Category.NCCL_HANG, 0.3, ("a guess",)),)) == ()


def test_a_folder_that_does_not_answer_holds_up_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(executor, "gather", lambda *_, **__: go_on.wait(60.0) and ())
    assert judge_hang(tmp_path, 0.05).words == (f"evidence not judged within 0 s: see {tmp_path}",)
    go_on.set()


def test_flight_recorders_that_take_too_long_leave_the_stacks_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, state in enumerate("SST"):
        (tmp_path / f"rank-{rank}.proc.json").write_text(f'{{"state": "{state}"}}')
    go_on = threading.Event()
    monkeypatch.setattr(executor, "read_hang", lambda _: go_on.wait(60.0) and ())
    first, second = judge_hang(tmp_path, 1.0).words
    assert first.startswith("non-communication hang: rank 2 is stopped") and second.startswith("evidence not judged")
    go_on.set()


def test_a_fault_of_ours_holds_up_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "read_hang", lambda _: 1 / 0)
    assert judge_hang(tmp_path).words == ("evidence not judged: ZeroDivisionError('division by zero')",)


@pytest.mark.parametrize(("culprits", "confidence", "nodes"), [
    ((Culprit("n2", 2), Culprit("n2", 3)), 0.8, ("n2",)),
    ((Culprit("n2", 2), Culprit("n3", 4)), 0.9, ()),
    ((Culprit("n2", 2), Culprit("", 4)), 0.9, ()),
    ((Culprit("n2", 2),), 0.6, ()),
    ((), 0.9, ()),
])  # fmt: skip
def test_one_node_alone_is_a_suspect(culprits: tuple[Culprit, ...], confidence: float, nodes: tuple[str, ...]) -> None:
    assert verdict_of((Clue("stacks", Category.NCCL_HANG, confidence, ("x",), culprits),)).nodes == nodes
