"""A run whose loss was NaN to the end: nobody is led to continue from a checkpoint of that state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cli_support import transom
from typer.testing import CliRunner, Result

from transom_cli.ckpt import files
from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.cli import resume as resuming
from transom_cli.cli.app import app
from transom_cli.core import events as ev
from transom_cli.layout import RunDir
from transom_cli.slurm.port import NoSuchJob
from transom_cli.supervise.journal import Journal, fold
from transom_cli.supervise.run_summary import write_summary

WORDS = "the loss is NaN since step 41: checkpoint 50 was saved after that, and 30 is the newest from before it"


def save(run: RunDir, *steps: int, attempt: str = "7.0") -> None:
    for step in steps:
        path = run.checkpoints / f"step-{step}"
        path.mkdir(parents=True)
        files.write_new(path / ".metadata", b"m")
        entries = (files.measure(path / ".metadata"),)
        manifest = Manifest(step, 1, attempt, "2.6.0", "2026-01-01T00:00:00+00:00", entries)
        files.write_new(path / "manifest.json", encode(manifest))


@pytest.fixture
def stopped(run: RunDir) -> RunDir:
    """The loss was NaN from step 41 on, and the run was stopped at step 60."""
    return end(run, {"since": 41, "good": 40})


def end(run: RunDir, bad: dict[str, int] | None) -> RunDir:
    attempt = run.attempt(7, 0)
    attempt.path.mkdir(parents=True)
    standing = [{"what": "nan_loss", "step": 43, "words": "the loss is NaN since step 41; last good at step 40"}]
    attempt.reports.write_text(json.dumps({"schema": 1, "standing": standing if bad else [], "bad_loss": bad}))
    journal = Journal(run.journal, 1)
    for event in (
        ev.Started(1.0, 1),
        ev.Submitted(2.0, "submit", 7),
        ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)),
        ev.StepSeen(4.0, "7.0", 60),
        ev.CheckpointSeen(4.0, 50),
        ev.StopRequested(5.0, "ada"),
        ev.JobSeen(6.0, 7, 0, "CANCELLED"),
    ):
        journal.append(event)
    journal.close()
    return run


@pytest.fixture
def resume(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`transom resume`, where Slurm has forgotten the last job, and no operator is started."""

    class Forgetful:
        def job(self, job_id: int) -> None:
            raise NoSuchJob("gone", "")

    def started(made: RunDir, **how: Any) -> int:
        return 0

    monkeypatch.setattr("transom_cli.bootstrap.slurm.run_slurm", lambda *_: Forgetful())
    monkeypatch.setattr("transom_cli.bootstrap.slurm.require_own_cluster", lambda *_: None)
    monkeypatch.setattr(resuming, "operate_or_watch", started)
    return lambda *words: CliRunner().invoke(app, ["resume", str(run.path), *words])


def steps(run: RunDir) -> list[int]:
    return [one.step for one in candidates(run.checkpoints)]


def test_screens_offer_the_newest_good_checkpoint_and_say_why(stopped: RunDir) -> None:
    save(stopped, 30, 50)
    command = f"transom resume {stopped.run_id} --from 30"
    status = transom("status", stopped.path).stdout
    assert WORDS in " ".join(status.split()).replace(" noticed", "") and command in status, status
    assert "noticed" in status and status.count("the loss is NaN since") == 1 and "not a number" not in status
    assert f"{stopped.run_id}  STOPPED, LOSS NaN" in status.splitlines()[0]
    explained = transom("explain", stopped.path).stdout
    assert WORDS in explained and command in explained and explained.count("the loss is NaN since") == 1
    ended = transom("attach", stopped.path)
    assert WORDS in ended.stderr and f"To continue from step 30: `{command}`" in ended.stderr
    overview = transom(TRANSOM_ROOT=str(stopped.path.parent))
    assert command in overview.stdout, overview.stdout
    again = transom("stop", stopped.path)
    assert WORDS in again.stderr and command in again.stderr
    document = json.loads(transom("status", stopped.path, "--json").stdout)
    assert document["bad_resume"] == {"loss": {"since": 41, "good": 40, "infinite": False}, "newest": 50, "instead": 30}


def test_list_says_that_the_loss_was_not_a_number(stopped: RunDir) -> None:
    write_summary(stopped, fold(stopped.journal).state, 2.0)
    listed = transom("list", "--root", stopped.path.parent).stdout
    assert "stopped by ada; the loss is NaN since step 41" in listed


def test_if_no_checkpoint_is_good_screens_say_so_and_what_can_be_done(stopped: RunDir) -> None:
    save(stopped, 40, 50)
    status = transom("status", stopped.path).stdout
    force = f"transom resume {stopped.run_id} --force"
    assert "none is from before it" in " ".join(status.split()).replace(" noticed", "")
    assert f"{force}   # from the bad state; or start a new run" in " ".join(status.split("\\\n")), status
    assert f"transom ckpt ls {stopped.run_id}" in status
    then = f"to continue: `{force}` continues from the bad state; or start a new run"
    for command in ("explain", "stop"):
        done = transom(command, stopped.path)
        assert then in done.stdout + done.stderr, command
    ended = transom("attach", stopped.path).stderr
    assert then.capitalize() in ended and ended.count("To continue") == 1
    save(stopped, 30)
    assert "--force" not in transom("status", stopped.path).stdout


def test_infinite_loss_is_not_called_nan(run: RunDir) -> None:
    end(run, {"since": 41, "good": 40, "infinite": True})
    save(run, 30, 50)
    status = transom("status", run.path).stdout
    assert "STOPPED, LOSS INFINITE" in status and "the loss is infinite since step 41" in " ".join(status.split())


def test_plain_resume_from_a_checkpoint_after_the_nan_loss_is_refused(
    stopped: RunDir, resume: Callable[..., Result]
) -> None:
    save(stopped, 30, 50)
    done = resume()
    assert done.exception is not None and str(done.exception).startswith(
        f"Run `{stopped.run_id}` would continue from a bad state"
    )
    assert WORDS in str(done.exception) and f"transom resume {stopped.run_id} --from 30" in str(done.exception)
    assert fold(stopped.journal).state.phase.over and steps(stopped) == [50, 30]
    assert resume("--force").exit_code == 0 and steps(stopped) == [50, 30]


def test_resume_from_a_step_sets_newer_checkpoints_aside_and_continues_there(
    stopped: RunDir, resume: Callable[..., Result]
) -> None:
    save(stopped, 30, 45, 50)
    done = resume("--from", "30")
    assert done.exit_code == 0, done.exception
    assert f"run {stopped.run_id} continues from checkpoint 30" in done.stderr and "step-50" in done.stderr
    assert steps(stopped) == [30] and (stopped.checkpoints / "step-50.undone-1").is_dir()
    state = fold(stopped.journal).state
    assert not state.phase.over and state.progress.durable == 30


def test_resume_from_a_step_that_does_not_exist_names_those_that_do(
    stopped: RunDir, resume: Callable[..., Result]
) -> None:
    save(stopped, 30, 50)
    error = str(resume("--from", "35").exception)
    assert "no checkpoint of step 35" in error and "50, 30" in error
    assert steps(stopped) == [50, 30] and fold(stopped.journal).state.phase.over


def test_resume_from_a_step_refuses_if_a_newer_checkpoint_is_of_elsewhere(
    stopped: RunDir, resume: Callable[..., Result]
) -> None:
    save(stopped, 30)
    save(stopped, 50, attempt="elsewhere")
    error = str(resume("--from", "30").exception)
    assert "step-50 is newer, and was not written by this run" in error and steps(stopped) == [50, 30]


@pytest.mark.parametrize(("bad", "saved"), [(None, (30, 50)), ({"since": 41, "good": 40}, (30, 39))])
def test_resume_from_a_good_checkpoint_asks_for_nothing(
    run: RunDir, resume: Callable[..., Result], bad: dict[str, int] | None, saved: tuple[int, ...]
) -> None:
    end(run, bad)
    save(run, *saved)
    assert resume().exit_code == 0
    assert f"To continue: `transom resume {run.run_id}`" not in transom("status", run.path).stdout


def test_resume_of_a_trainer_with_checkpoints_of_its_own_warns(stopped: RunDir, resume: Callable[..., Result]) -> None:
    done = resume()
    assert done.exit_code == 0 and "warning: the loss is NaN since step 41" in done.stderr


def test_an_attempt_without_a_loss_does_not_hide_the_bad_one_before(
    stopped: RunDir, resume: Callable[..., Result]
) -> None:
    save(stopped, 30, 50)
    stopped.attempt(8, 0).path.mkdir()
    assert "bad state" in str(resume().exception)


def test_ckpt_ls_marks_checkpoints_after_the_nan_loss(stopped: RunDir) -> None:
    save(stopped, 30, 40, 50)
    listed = transom("ckpt", "ls", stopped.path).stdout.splitlines()
    assert [line.split("complete")[1] for line in listed[1:]] == [
        ", after NaN loss at step 41",
        ", may be bad: NaN loss at step 41",
        "",
    ]
    found = json.loads(transom("ckpt", "ls", stopped.path, "--json").stdout)["checkpoints"]
    assert [one["bad_loss"] for one in found] == [
        "after NaN loss at step 41",
        "may be bad: NaN loss at step 41",
        "",
    ]
