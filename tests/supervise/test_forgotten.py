"""What the operator is told of a job that Slurm has forgotten: how it ended, where accounting knows."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.cadence import Pause
from transom_cli.layout import RunDir
from transom_cli.ownership import user_name
from transom_cli.slurm.port import SlurmUnknown, Submission
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.slurm_poller import FORGOTTEN_AFTER, ForgottenJobs, SlurmPoller


class Scene:
    """Job 1 runs, with accounting that began before it."""

    def __init__(self, folder: Path) -> None:
        self.run, self.slurm = RunDir(folder), FakeSlurm(accounting=True)
        self.script = folder / "job.sbatch"
        self.script.write_text("#!/bin/sh\n")
        self.submit()
        self.forgotten = ForgottenJobs(self.run, self.slurm, Clock(), 0.0)

    def submit(self, *options: str) -> int:
        job_id = self.slurm.submit(Submission(self.script, options))
        self.slurm.tick(5)
        return job_id

    def end_and_forget(self, job_id: int = 1, code: int | None = None) -> None:
        self.slurm.cancel(job_id) if code is None else self.slurm.finish(job_id, code)
        self.slurm.tick(5)
        self.slurm.forget(job_id)

    def asked(self) -> int:
        return [call[0] for call in self.slurm.calls].count("history")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(("code", "ended"), [(None, "CANCELLED"), (0, "COMPLETED"), (93, "FAILED")])
def test_how_it_ended_is_asked_of_accounting_once(scene: Scene, code: int | None, ended: str) -> None:
    scene.end_and_forget(code=code)
    first, again = scene.forgotten(1), scene.forgotten(1)
    assert (first.job_id, first.ended, first.exit_code) == (1, ended, code or 0)
    assert again.ended == ended and again.at >= first.at and scene.asked() == 1


def test_accounting_that_does_not_answer_tells_nothing_and_is_not_asked_again(scene: Scene) -> None:
    scene.end_and_forget()
    scene.slurm.fail_next("history", SlurmUnknown("Slurm did not answer `sacct` within 30 s", ""))
    assert [scene.forgotten(1).ended for _ in range(3)] == ["", "", ""] and scene.asked() == 1


def test_a_job_that_still_runs_by_accounting_is_only_gone(scene: Scene) -> None:
    """The controller lost its state: that is no end."""
    assert scene.forgotten(1).ended == ""
    scene.submit()
    scene.slurm.requeue_behind(2)
    assert scene.forgotten(2).ended == "", "it waits"


@pytest.mark.parametrize("successor_cancelled", [False, True])
def test_a_job_that_its_launcher_cancelled_for_a_successor(scene: Scene, successor_cancelled: bool) -> None:
    attempt = scene.run.attempt(1, 0)
    attempt.path.mkdir(parents=True)
    record = {"type": "requeued", "how": "resubmitted", "job_id": 2, "restarts": 0, "wall": 1.0}
    attempt.launcher_journal.write_text(json.dumps(record) + "\n")
    scene.submit()
    scene.end_and_forget(1)
    if successor_cancelled:
        scene.end_and_forget(2)
    told = scene.forgotten(1)
    assert (told.job_id, told.ended) == (1, "CANCELLED" if successor_cancelled else "")


def test_the_operators_eyes_tell_it_in_place_of_a_mere_absence(scene: Scene) -> None:
    scene.end_and_forget()
    out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
    eyes = SlurmPoller(scene.slurm, Clock(), out, lambda _took: Pause(0.01, 0.0), forgotten=scene.forgotten)
    eyes.follow(1, 0, ())
    eyes.start()
    told = out.get(timeout=30)
    eyes.stop()
    assert isinstance(told, ev.JobGone) and told.ended == "CANCELLED"
    assert [call[0] for call in scene.slurm.calls].count("job") >= FORGOTTEN_AFTER


def test_names_of_users() -> None:
    assert (user_name(None), user_name(0), user_name(2**31 - 7)) == ("", "root", f"user {2**31 - 7}")
