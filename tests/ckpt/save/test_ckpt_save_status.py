"""Saves that fail are an alarm that a run's readers see: status, its exit code, list, explain and notifications."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch
from processes import wait_for
from torch import nn

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import one_line
from transom_cli.ckpt.save.status import SaveStatus, encode, worst
from transom_cli.cli.show import code_of
from transom_cli.config.load import load
from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Job, Policy, SavesFail, State
from transom_cli.core.stall import StallLimits
from transom_cli.layout import RunDir
from transom_cli.notify.events import DEFAULT_KINDS, notifications_for
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.view.read import read_view
from transom_cli.view.status import status_lines


class Loader:
    """Its state can be read until it is told otherwise."""

    broken = ""

    def state_dict(self):
        if self.broken:
            raise KeyError(self.broken)
        return {"position": 1}

    def load_state_dict(self, state) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose job 7 trains; this process is its rank 0."""
    settings = load(site=None, user=Path("/nonexistent"))
    found = new_run(tmp_path / "runs", "r", datetime(2026, 3, 4, tzinfo=timezone.utc), settings, "#!/bin/sh\n")
    SubmissionRecord(chdir="/").save(found)
    write_header(found.journal, Policy(), 1)
    remember(found, ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)))
    remember(found, ev.LaunchSeen(4.0, "7.0", 0, ("n1",), 1), ev.StepSeen(5.0, "7.0", 5))
    attempt = found.attempt(7, 0)
    attempt.path.mkdir(parents=True)
    monkeypatch.setenv("TRANSOM_ATTEMPT_DIR", str(attempt.path))
    monkeypatch.setenv("TRANSOM_RUN_DIR", str(found.path))
    monkeypatch.setenv("TRANSOM_ATTEMPT", "7.0")
    return found


def remember(run: RunDir, *events: ev.Event) -> None:
    journal = Journal(run.journal, 1)
    for event in events:
        journal.append(event)
    journal.close()


@pytest.fixture
def failing(run: RunDir, directory: Path) -> Callable[[], Checkpointer]:
    """A training of which step 2 is saved, and steps 4 and 6 cannot be."""

    def train() -> Checkpointer:
        loader = Loader()
        checkpointer = Checkpointer({"model": nn.Linear(2, 2), "loader": loader}, directory, every=2)
        checkpointer.save(2)
        checkpointer.wait(strict=True)
        loader.broken = "state"
        for step in (4, 6):
            checkpointer.save(step)
            checkpointer.wait()
        return checkpointer

    return train


def test_status_shows_that_saves_fail_why_how_often_and_the_last_good_step(run: RunDir, failing):
    checkpointer = failing()
    checkpointer.close()
    view = read_view(run)
    shown = status_lines(view, 200)
    (line,) = [line for line in shown if line.startswith("SAVES FAIL")]
    assert "the next save tries again" in shown[shown.index(line) + 1]
    assert "KeyError: 'state'" in line
    assert "2 in a row, last good step 2" in line
    assert code_of(replace(view, operator=True)) == 20
    assert view.saves_fail is not None and view.saves_fail.step == 6


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        (
            "node1: No space left on device: /big/my ck/.tmp-step-40-12.0.0-f08/__0_0.distcp",
            "free space in /big/my ck: the next save tries again",
        ),
        ("Disk quota exceeded", "free space on that file system: the next save tries again"),
        ("KeyError: 'state'", "find the cause with `transom logs`: the next save tries again"),
    ],
)
def test_failing_saves_say_what_to_do(why: str, advice: str) -> None:
    assert SavesFail(0.0, "7.0", 1, 40, why, 30).advice == advice


def test_good_save_ends_the_alarm(run: RunDir, failing):
    checkpointer = failing()
    checkpointer._saver._state._entries["loader"].broken = ""
    checkpointer.save(8)
    checkpointer.close(strict=True)
    view = read_view(run)
    assert view.saves_fail is None
    assert code_of(replace(view, operator=True)) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_save_that_another_ranks_end_has_cut_off_is_no_alarm_until_the_next_one_fails(count: int) -> None:
    why = one_line(RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"))
    found = worst(encode({"/c": SaveStatus(failed=count, step=10, why=why, since=1.0)}))
    assert found is not None and found.failed == (0 if count == 1 else 2)


def test_checkpoint_that_cannot_be_written_to_disk_is_an_alarm(run: RunDir, directory: Path):
    checkpointer = Checkpointer({"held": torch.ones(2)}, directory, every=1)
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    directory.rename(directory.with_name("moved"))
    directory.write_text("no folder")
    checkpointer.save(2)
    checkpointer.wait()
    checkpointer.close()
    fails = read_view(run).saves_fail
    assert fails is not None and (fails.count, fails.step, fails.good) == (1, 2, 1)


def test_run_that_is_done_but_was_not_saved_is_degraded(run: RunDir, failing):
    failing().close()
    remember(run, ev.OutcomeSeen(9.0, "7.0", "done", "every rank ended well"), ev.JobSeen(10.0, 7, 0, "COMPLETED"))
    view = read_view(run)
    assert view.phase == "done"
    assert any(line.startswith("SAVES FAIL") for line in status_lines(view, 200))
    assert code_of(view) == 20


def test_operator_notifies_once_of_a_failed_save(run: RunDir, failing):
    checkpointer = failing()
    checkpointer.close()
    state = State(job=Job(id=7))
    follower = Follower(run, run.path / "none", StallLimits())
    seen = [e for now in (100.0, 102.0, 104.0) for e in follower.poll(state, now) if isinstance(e, ev.SavesSeen)]
    assert [(e.failed, e.step, e.good) for e in seen] == [(2, 6, 2)]
    failing_now, _ = decide(state, seen[0])
    (news,) = notifications_for(state, 0.0, failing_now, 100.0)
    assert news.kind in DEFAULT_KINDS
    assert "SAVES FAIL" in news.headline and "KeyError: 'state'" in news.headline
    assert any("the next save tries again" in one for one in news.details)
    again, _ = decide(failing_now, replace(seen[0], at=160.0, failed=5))
    assert notifications_for(failing_now, 100.0, again, 160.0) == ()
    good, _ = decide(again, ev.SavesSeen(200.0, "7.0", 0))
    (news,) = notifications_for(again, 160.0, good, 200.0)
    assert "saves succeed again" in news.headline


def test_explain_reports_failing_saves(run: RunDir, failing):
    from typer.testing import CliRunner

    from transom_cli.cli.app import app

    failing().close()
    told = CliRunner().invoke(app, ["explain", str(run.path)])
    assert "SAVES FAIL" in told.output and "last good step 2" in told.output, told.output
    assert "the next save tries again" in told.output
    told = CliRunner().invoke(app, ["explain", str(run.path), "--json"])
    assert json.loads(told.output)["saves_fail"]["count"] == 2


def test_nothing_waits_for_a_folder_that_cannot_be_written(run: RunDir, failing):
    run.attempt(7, 0).path.rmdir()
    run.attempt(7, 0).path.write_text("no folder")
    began = time.monotonic()
    failing().close()
    assert time.monotonic() - began < 30
    wait_for(lambda: read_view(run).saves_fail is None, 1.0)
