"""Exit codes: those that are written down, those of a run that is over, and a stop that did not happen."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from cli_support import transom
from typer.testing import CliRunner, Result

from transom_cli.cli import requests
from transom_cli.cli.app import app
from transom_cli.cli.show import code_of
from transom_cli.core import events as ev
from transom_cli.core.operator.state import State
from transom_cli.errors import EXIT_CODES, NoSuchRun, TransomError, Unknown, UsageError
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Journal, fold
from transom_cli.supervise.lease import read_holder
from transom_cli.view.model import build_view

EXIT_CODE_PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()


def remember(run: RunDir, *events: ev.Event) -> None:
    journal = Journal(run.journal, 1)
    for event in events:
        journal.append(event)
    journal.close()


def given_up(run: RunDir, code: int = 15, durable: int = -1) -> None:
    """A training that ended with an exit code after which nothing is started again. 15: no checkpoint restores."""
    exits = (ev.RankExit(0, "n1", code, None),)
    remember(
        run,
        ev.Started(1.0, 1),
        ev.Submitted(2.0, "submit", 7),
        ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)),
        ev.CheckpointSeen(3.0, durable),
        ev.OutcomeSeen(4.0, "7.0", "failed", "rank 0 ended", exits),
        ev.JobSeen(5.0, 7, 0, "FAILED", exit_code=code),
        ev.Examined(6.0, "i1/examine", "unknown", "", ""),
    )


def test_documentation_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| ([0-9+n]+) \| (.*) \|$", EXIT_CODE_PAGE, re.MULTILINE)
    assert rows == [(str(code), words) for code, words in EXIT_CODES.items()]


def test_a_run_that_is_over_gives_its_own_code(run: RunDir) -> None:
    given_up(run)
    asked = transom("status", run.path, "--exit-code")
    assert "FAILED" in asked.stdout and asked.returncode == 15, asked.stdout + asked.stderr


def test_a_run_without_an_operator_is_unknown(run: RunDir) -> None:
    assert transom("status", run.path, "--exit-code").returncode == 22
    assert code_of(build_view("r", State(), {}, 0.0, operator=True)) == 0


@pytest.fixture
def stopping(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], BaseException]]:
    """A run with a job, and how `transom stop` ends where Slurm's commands are those in tmp_path."""
    remember(run, ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7))
    monkeypatch.setattr(requests, "STOP_PATIENCE", 4.0)
    monkeypatch.setenv("PATH", str(tmp_path))

    def stop() -> BaseException:
        error = CliRunner().invoke(app, ["stop", str(run.path)]).exception
        assert error is not None
        return error

    yield stop
    holder = read_holder(run)
    if holder is not None and not holder.released:
        os.kill(holder.pid, signal.SIGTERM)


def no_slurm(folder: Path) -> None:
    for name in ("scontrol", "scancel", "squeue", "sacct"):
        (folder / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        (folder / name).chmod(0o755)


def test_stop_says_with_22_that_nothing_has_stopped(stopping: Callable[[], BaseException], tmp_path: Path) -> None:
    no_slurm(tmp_path)
    error = stopping()
    assert isinstance(error, Unknown) and error.exit_code == 22
    assert "has not stopped yet" in error.what and "Unable to contact slurm controller" in error.why


def test_stop_says_in_a_pipe_that_it_waits_for_slurm_and_for_what(
    run: RunDir, stopping: Callable[[], BaseException], tmp_path: Path
) -> None:
    no_slurm(tmp_path)
    said = CliRunner().invoke(app, ["stop", str(run.path)]).stderr
    assert said.count("Slurm does not respond; waiting up to 4 s for it to cancel job 7: ") == 1, said
    assert "Unable to contact slurm controller" in said


def test_stop_says_with_22_that_the_job_could_not_be_cancelled(stopping: Callable[[], BaseException]) -> None:
    error = stopping()
    assert isinstance(error, Unknown) and error.what == "Job 7 may still be running"
    assert "cancelling failed" in error.why and error.hint == "scancel 7, then repeat this command"


def test_stop_as_json(run: RunDir) -> None:
    given_up(run)
    done = transom("stop", run.path, "--json")
    assert done.returncode == 0 and not done.stderr
    assert json.loads(done.stdout) == {"schema": 1, "run_id": run.run_id, "phase": "failed", "was_over": True}
    assert f"run {run.run_id} has already ended: failed" in transom("stop", run.path).stderr


def test_stop_says_that_the_final_save_failed_and_how_many_steps_are_not_saved(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "node1: No space left on device: /ck/.tmp-step-260-7.0.0-f/__0_0.distcp"
    remember(
        run,
        ev.Started(1.0, 1),
        ev.Submitted(2.0, "submit", 7),
        ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)),
        ev.CheckpointSeen(3.0, 30),
        ev.StepSeen(4.0, "7.0", 269),
        ev.SavesSeen(5.0, "7.0", 12, 260, full, 30),
    )
    words = requests.unsaved(run, fold(run.journal).state)
    assert words.startswith(
        f"saves fail: {full}; a stop now loses 239 steps since checkpoint 30. First free space in /ck"
    )
    with monkeypatch.context() as patch, pytest.raises(typer.Abort):
        patch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        patch.setattr("typer.prompt", lambda *_, **__: "n")
        requests.stop(str(run.path))  # a named run asks too, since its work would be lost
    remember(run, ev.StopRequested(6.0, "ada"), ev.JobSeen(7.0, 7, 0, "CANCELLED"))
    told = transom("stop", run.path).stderr
    assert "stopped, with checkpoint 30 on disk" in told
    assert "warning: the final save failed: " in told and "239 steps since checkpoint 30 are lost" in told


@pytest.mark.parametrize("command", ["stop", "requeue", "resume"])
def test_job_that_may_still_run_is_reported_each_time(run: RunDir, command: str) -> None:
    refused = ev.ActionFailed(4.0, "cancel/7.0", "Cancel", "no such command")
    remember(run, ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), ev.StopRequested(3.0, "bob"), refused)
    done = transom(command, run.path)
    assert done.returncode == 22 and "may still be running" in done.stderr and "hint: scancel" in done.stderr, done


@pytest.mark.parametrize(
    ("code", "durable", "told"), [(93, 40, "To continue from step 40: "), (93, -1, "To continue: "), (15, 40, "")]
)
def test_a_run_that_is_over_says_how_to_go_on(run: RunDir, code: int, durable: int, told: str) -> None:
    given_up(run, code, durable)
    done = transom("attach", run.path)
    assert done.returncode == {93: 1}.get(code, code)
    command = f"`transom resume {run.run_id}`"
    assert f"{told}{command}" in done.stderr if told else "transom resume" not in done.stderr


def test_stop_without_a_name_needs_a_yes(run: RunDir) -> None:
    done = transom("stop", "--root", run.path.parent)
    assert done.returncode == 2 and f"transom stop {run.run_id}" in done.stderr
    assert not list(run.requests.iterdir()), "nothing was requested"


def test_stop_without_a_name_names_what_has_not_ended_if_the_newest_run_has(run: RunDir) -> None:
    newer = RunDir(run.path.parent / run.run_id.replace("20260304", "20260305"))
    shutil.copytree(run.path, newer.path)
    given_up(newer)
    error = CliRunner().invoke(app, ["stop", "--root", str(run.path.parent)]).exception
    assert isinstance(error, UsageError) and error.hint == f"transom stop {run.run_id}", error


def test_resume_without_a_name_takes_the_newest_run_that_has_ended_and_needs_a_yes(run: RunDir) -> None:
    def resume(*words: str) -> Result:
        return CliRunner().invoke(app, ["resume", "--root", str(run.path.parent), *words])

    error = resume().exception
    assert isinstance(error, NoSuchRun) and error.why == f"the newest, {run.run_id}, is submitting"
    given_up(run)
    newer = RunDir(run.path.parent / run.run_id.replace("20260304", "20260305"))  # it has been resumed
    shutil.copytree(run.path, newer.path)
    remember(newer, ev.Resumed(10.0, "bob"))
    error = resume().exception
    assert isinstance(error, UsageError) and error.hint.startswith(f"transom resume {run.run_id}\n")
    assert f"resuming run {run.run_id}, failed " in resume("--yes").stderr


@pytest.mark.parametrize("gone", ["settings", "submission", "script"])
def test_run_whose_files_are_gone_is_not_resumed_and_says_what_can_be_done(run: RunDir, gone: str) -> None:
    given_up(run, 93)
    run.summary.touch()
    path: Path = getattr(run, gone)
    path.unlink()
    error = CliRunner().invoke(app, ["resume", str(run.path)]).exception
    assert isinstance(error, TransomError) and error.what == f"cannot read {path}", error
    assert "restore it from a copy" in error.hint and f"--set checkpoint.directory={run.checkpoints}" in error.hint


def test_stop_of_a_run_without_an_operator_or_a_job_submits_nothing(run: RunDir, tmp_path: Path) -> None:
    done = transom("stop", run.path, PATH=str(tmp_path))  # no command of Slurm
    assert done.returncode == 0, done.stderr
    assert f"run {run.run_id} is stopped" in done.stderr and "its job was never submitted" in done.stderr
    assert read_holder(run) is not None and not list(run.requests.glob("*"))
    assert transom("status", run.path).stdout.count("never submitted") == 1
