"""The measurement of one process with many runs: its runs are in the state that a row names, and it counts right."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import neighbour_process
from neighbour_process import NODES, STATES, answers, counted, idle_run, named, past, rows

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.slurm.parse import parse_show_job, parse_squeue
from transom_cli.supervise.journal import fold
from transom_cli.supervise.operator.slurm_poller import job_seen


@pytest.mark.parametrize("state", STATES)
def test_a_run_is_in_the_state_that_its_row_names(tmp_path: Path, state: str) -> None:
    run = idle_run(tmp_path / "runs", 1, past(state, 1))
    answers(tmp_path / "bin", 1, state)
    (job,) = parse_squeue((tmp_path / "bin" / "squeue.txt").read_text())
    alone = parse_show_job((tmp_path / "bin" / "scontrol.txt").read_text())
    for answer in (job, alone):
        after, actions = decide(fold(run.journal).state, job_seen(1e10, answer))
        assert named(after) == state and not actions
    assert job.nodes == (NODES if state == "training" else ())


def test_a_run_that_waits_for_an_answer_is_in_no_named_state(tmp_path: Path) -> None:
    state = fold(idle_run(tmp_path / "runs", 1, past("recovering", 1)[:-1]).journal).state
    assert state.pending and named(state) == ""
    quiet = fold(idle_run(tmp_path / "runs", 1, past("training", 1)).journal).state
    assert named(replace(quiet, slurm_error="no answer")) == ""
    assert named(decide(quiet, ev.StopRequested(1e10, "me"))[0]) == ""


def test_only_calls_on_the_run_directories_count_and_each_counts_once() -> None:
    trace = """\
12  newfstatat(AT_FDCWD</>, "/top/runs/idle/epochs", 0x7ffd, 0) = 0
12  openat(AT_FDCWD</>, "/etc/passwd", O_RDONLY) = 3</etc/passwd>
13  openat(AT_FDCWD</>, "/top/runs/idle/epochs", O_RDONLY <unfinished ...>
12  close(3</top/runs/idle/a>) = 0
13  <... openat resumed>) = 4</top/runs/idle/epochs>
1234 read(5<socket:[1]>, "", 4) = 0
"""
    assert counted(trace, "/top/runs", 2.0) == {"newfstatat": 0.5, "openat": 0.5, "close": 0.5}
    assert counted(trace.replace("idle/a", "other/a"), "/top/runs", 0.5)["close"] == 1.0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_process_with_many_runs_stays_small_in_every_state(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, each with 20 runs. CPU is not judged here: other tests may run beside this one."""
    monkeypatch.setattr(neighbour_process, "CALM", 62.0)
    for row in rows(STATES, (20,), 60.0, str(short_dir)):
        assert not row["others"], row
        assert row["MB"] <= 60.0 and row["calls_a_minute"] <= 3.0, row
        assert row["file_calls"] is None or row["file_calls"] <= (60.0 if row["state"] == "training" else 15.0), row
