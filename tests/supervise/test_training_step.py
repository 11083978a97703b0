"""The training step around real processes in srun's place: one that cannot reach slurmctld is started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transom_cli.supervise.agent.exit_record import publish
from transom_cli.supervise.launcher import training
from transom_cli.supervise.launcher.training import StepPlan, TrainingStep

SRUN = """
import pathlib, sys, time
count, away, then, words = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
count.write_text(count.read_text() + "x")
if len(count.read_text()) <= away:
    print(words, file=sys.stderr)
    sys.exit(1)
if then == "sleep":
    time.sleep(600)
print("srun: error: n2: task 1: Exited with exit code 5" if then == "5" else "", file=sys.stderr)
sys.exit(int(then))
"""
AWAY = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)"


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingStep]:
    monkeypatch.setattr(training, "backoff", lambda tries: 0.05 * tries)
    count = tmp_path / "count"
    count.write_text("")

    def make(away: int, then: str, words: str = AWAY, *, standby: bool = False) -> TrainingStep:
        argv = [sys.executable, "-I", "-c", SRUN, str(count), str(away), then, words]
        return TrainingStep(StepPlan(argv, dict(os.environ), ("n1", "n2"), 2, standby=standby), tmp_path / "exits")

    return make


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "count").read_text())


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("then", ["0", "5"])
def test_it_is_started_until_slurm_answers_and_its_end_is_the_last_ones(
    tmp_path: Path, step: Callable[..., TrainingStep], then: str
) -> None:
    made = step(3, then)
    until(lambda: made.code is not None)
    assert (made.code, starts(tmp_path), made.waits) == (int(then), 4, "")
    assert [x.rank for x in made.exits()] == ([1] if then == "5" else [])


def test_what_ends_otherwise_is_not_started_again(tmp_path: Path, step: Callable[..., TrainingStep]) -> None:
    made = step(9, "0", "srun: error: Unable to create step for job 7: Requested nodes are busy")
    until(lambda: made.code is not None)
    assert (made.code, starts(tmp_path)) == (1, 1)


def test_while_it_waits_it_has_not_ended_and_tells_why(
    step: Callable[..., TrainingStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "backoff", lambda tries: 600.0)
    made = step(9, "0")
    until(lambda: bool(made.waits))
    assert made.code is None and "Unable to contact slurm controller" in made.waits
    made.kill()
    until(lambda: made.code is not None)


def test_srun_that_slurm_ends_says_so(step: Callable[..., TrainingStep]) -> None:
    assert step(9, "0", "srun: forcing job termination").aborted(10.0)
    assert not step(9, "0", "srun: error: Unable to create step for job 7: Requested nodes are busy").aborted(0.3)


@pytest.mark.parametrize("end", ["term", "wait", "kill"])
def test_told_to_end_it_is_not_started_again(
    tmp_path: Path, step: Callable[..., TrainingStep], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(training, "backoff", lambda tries: 600.0)
    made = step(9, "0")
    until(lambda: bool(made.waits))
    if end == "wait":
        assert made.wait(30.0)
    else:
        made.signal(signal.SIGTERM) if end == "term" else made.kill()
    until(lambda: made.code is not None)
    assert (made.code, starts(tmp_path)) == (1, 1)


def test_a_warning_reaches_the_srun_that_runs_and_ends_no_wait(step: Callable[..., TrainingStep]) -> None:
    made = step(2, "sleep")
    made.signal(signal.SIGCONT)
    until(lambda: not made.waits and made.code is None)
    made.signal(signal.SIGKILL)
    until(lambda: made.code == -signal.SIGKILL or made.code is None)
    made.kill()
    until(lambda: made.code is not None)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_becomes_of_the_task_on_a_replaced_node_is_no_end_of_a_rank(
    tmp_path: Path, step: Callable[..., TrainingStep], recorded: bool
) -> None:
    """Task 1 of a standby step was on a node that a spare has replaced."""
    made = step(0, "5", standby=True)
    made.go({}, (0,))
    if recorded:
        ended = {"rank": 0, "node": "n1", "code": 0, "signal": None, "wall": 1.0}
        publish(str(tmp_path / "exits"), "rank-0.json", ended)
    until(lambda: made.code is not None)
    assert made.code == (0 if recorded else 5)
    assert [x.rank for x in made.exits()] == ([0] if recorded else [])
