"""Stacks of a DataLoader's workers: only if the rank waits for them, and never at the cost of the rank's own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from transom_cli.supervise.agent import evidence, pyspy
from transom_cli.supervise.agent.processes import CHILD, RANK, Member
from transom_cli.supervise.agent.procfs import Process, read

RANK_WAITS = 'Process 1: x\nThread 1 (idle): "MainThread"\n    get (torch/utils/data/dataloader.py:9)\n'
RANK_STEPS = 'Process 1: x\nThread 1 (idle): "MainThread"\n    step (train.py:9)\n'
WORKER = 'Process 2: y\nThread 2 (idle): "MainThread"\n    __getitem__ (data.py:10)\n'


def take(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: str, workers: int = 6) -> tuple[list[float], str]:
    """Returns the seconds that each worker's dump was given, and the rank's file."""
    process, given, stack = read(os.getpid()), list[float](), folder / "rank-0.stack.txt"
    assert process is not None
    end = time.monotonic() + 100.0

    def dump(_: Process, deadline: float) -> pyspy.Dumped:
        if deadline == end:
            return pyspy.Dumped(pyspy.PYTHON, rank, "")
        assert stack.read_text() == rank, "the rank's own stack is safe by then"
        given.append(deadline - time.monotonic())
        return pyspy.Dumped(pyspy.PYTHON, WORKER if len(given) > 1 else "", "")

    monkeypatch.setattr(pyspy, "dump", dump)
    members = [Member(process, CHILD, 0, True)] * workers
    entry = evidence._one(Member(process, RANK, 0, True), members, folder, "rank-0", "", end)
    assert entry["note"] == "" and entry["top"]
    return given, stack.read_text()


def test_workers_get_half_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, text = take(monkeypatch, tmp_path, RANK_WAITS)
    assert len(given) == evidence.WORKERS and all(0 < seconds <= 50.0 for seconds in given)
    assert text.startswith(RANK_WAITS) and text.count(WORKER) == evidence.WORKERS - 1, "one had no stack"


def test_workers_of_a_rank_that_is_elsewhere_are_not_paused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert take(monkeypatch, tmp_path, RANK_STEPS) == ([], RANK_STEPS)
