"""What a launcher did alone, as it is found by whoever comes after it: operator, status, next launcher."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Cancel, Restart
from transom_cli.core.operator.cadence import Pause
from transom_cli.core.operator.state import Policy
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, Submission
from transom_cli.slurm.tags import run_tag, successor_tag
from transom_cli.supervise.handoff_record import RECORD, newest_handoff, read_handoff
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders
from transom_cli.supervise.operator.slurm_poller import SlurmPoller
from transom_cli.view.read import read_view
from transom_cli.view.status import status_lines

WHY = "rank 1 on n2 ended with exit code 1; 4 attempts in a row without a newer checkpoint"


class Scene:
    """A run whose job 1 trains, as its operator saw it before it went away."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "run-1")
        self.run.path.mkdir()
        self.run.script.write_text("#!/bin/sh\n")
        write_header(self.run.journal, Policy(), 2)
        self.slurm = FakeSlurm()
        self.tag = run_tag(self.run.run_id)
        assert self.submit(self.tag) == 1
        self.slurm.tick(5)
        journal = Journal(self.run.journal, 1)
        journal.append(ev.Started(1.0, 1))
        journal.append(ev.Submitted(2.0, "submit", 1))
        journal.append(ev.JobSeen(3.0, 1, 0, "RUNNING", nodes=("n1", "n2")))
        journal.append(ev.StepSeen(4.0, "1.0", 20))
        journal.close()

    def submit(self, comment: str, *options: str) -> int:
        return self.slurm.submit(Submission(self.run.script, ("--nodes=2", f"--comment={comment}", *options)))

    def handed(self, how: str, job_id: int, restarts: int, *, of: tuple[int, int] = (1, 0)) -> None:
        attempt = self.run.attempt(*of)
        attempt.path.mkdir(parents=True, exist_ok=True)
        record = {"type": RECORD, "wall": 100.0, "launch": 0, "how": how, "job_id": job_id, "restarts": restarts}
        with attempt.launcher_journal.open("a") as f:
            f.write(json.dumps({"type": "attempt"}) + "\n" + json.dumps(record) + "\n" + '{"type": "re')
        attempt.outcome.write_text(json.dumps({"status": "failed", "why": WHY}))

    def hold(self) -> None:
        self.slurm.requeue_hold(1)
        self.handed("held", 1, 1)

    def successor(self, *options: str, of: str = "1.0") -> int:
        return self.submit(successor_tag(self.tag, of), *options)

    def hands(self) -> tuple[Executor, queue.SimpleQueue[ev.Event]]:
        out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        reach: Callable[..., Finding] = lambda *_: Finding("reach", Verdict.PASS, "n1", "")  # noqa: E731
        orders = Orders(self.run, Submission(self.run.script, ("--nodes=2",)), resubmit=False)
        made = Executor(orders, self.slurm, reach, Clock(), out)
        made._sleep = self.slurm.sleep  # type: ignore[method-assign]
        return made, out

    def look(self, job_id: int = 1) -> ev.Event | None:
        watch = SlurmPoller(
            self.slurm,
            Clock(),
            queue.SimpleQueue(),
            lambda _took: Pause(1.0, 0.0),
            self.tag,
            lambda: newest_handoff(self.run),
        )
        watch.follow(job_id, 0, ("n1", "n2"))
        return watch._look(job_id, 0)[0]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- the journal ---


def test_nothing_is_handed_on_without_a_word_of_it(scene: Scene) -> None:
    assert newest_handoff(scene.run) is None
    scene.handed("requeued", 1, 1)
    assert newest_handoff(scene.run) == read_handoff(scene.run.attempt(1, 0))
    scene.run.attempt(1, 1).path.mkdir()
    assert newest_handoff(scene.run) is None, "a newer attempt has begun"
    before = newest_handoff(scene.run, before=(1, 1))
    assert before is not None and (before.attempt, before.how, before.start, before.why) == (
        "1.0",
        "requeued",
        (1, 1),
        WHY,
    )


@pytest.mark.parametrize("record", ["{}", "[1]", '{"type": "requeued", "words": "left to the operator"}', "\x00\xff"])
def test_what_no_launcher_says_counts_for_nothing(scene: Scene, record: str) -> None:
    attempt = scene.run.attempt(1, 0)
    attempt.path.mkdir(parents=True)
    attempt.launcher_journal.write_text(record)
    assert read_handoff(attempt) is None


# --- status, explain, list ---


def test_status_shows_why_the_launcher_holds_the_job_and_what_to_do(scene: Scene) -> None:
    assert read_view(scene.run).phase == "training", "the operator's last word"
    scene.hold()
    view = read_view(scene.run)
    assert (view.phase, view.job_id, view.restarts, view.since) == ("held", 1, 1, 100.0)
    assert view.verdict == f"held by its launcher: {WHY}"
    shown = status_lines(view, 200)
    assert shown[0].startswith("run-1  HELD ")
    assert f"reason      held by its launcher: {WHY}" in shown
    assert {"release     scontrol release 1", "details     transom explain run-1"} <= set(shown)


def test_status_shows_a_new_job_that_is_held(scene: Scene) -> None:
    scene.handed("held", 2, 0)
    view = read_view(scene.run)
    assert (view.phase, view.job_id, view.restarts) == ("held", 2, 0)


@pytest.mark.parametrize("later", ["an attempt", "an operator", "its journal", "the end"])
def test_a_hold_that_is_past_is_not_shown(scene: Scene, later: str) -> None:
    scene.hold()
    journal = Journal(scene.run.journal, 2)
    lease = None
    if later == "an attempt":
        scene.run.attempt(1, 1).path.mkdir()
    elif later == "an operator":
        lease = Lease.take(scene.run)
    elif later == "its journal":
        journal.append(ev.JobSeen(time.time(), 1, 1, "PENDING", reason="Resources"))
    else:
        journal.append(ev.JobSeen(time.time(), 1, 1, "CANCELLED"))
    journal.close()
    assert read_view(scene.run).phase != "held"
    if lease is not None:
        lease.give_up()


# --- the operator that returns ---


def test_a_hold_of_the_launcher_is_seen_with_its_reason(scene: Scene) -> None:
    scene.hold()
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen)
    assert (seen.restarts, seen.held, seen.held_why, seen.succeeds) == (1, True, WHY, 0)


@pytest.mark.parametrize("told", [True, False])
def test_a_requeue_by_the_launcher_is_told_from_slurms_own(scene: Scene, told: bool) -> None:
    scene.slurm.requeue(1)
    if told:
        scene.handed("requeued", 1, 1)
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen) and (seen.restarts, seen.by_launcher) == (1, told)


def test_another_hold_is_not_the_launchers(scene: Scene) -> None:
    scene.hold()
    scene.slurm.release(1)
    scene.slurm.tick(200)
    scene.slurm.requeue_behind(1)
    scene.slurm.hold_behind(1)
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen) and (seen.restarts, seen.held, seen.held_why) == (2, True, "")


def test_a_restart_leaves_the_launchers_hold_to_a_person(scene: Scene) -> None:
    scene.hold()
    hands, out = scene.hands()
    hands.do(Restart("i1/restart", 1, 0, 2, (), ()))
    told = out.get(timeout=30)
    assert isinstance(told, ev.Restarted) and (told.job_id, told.restarts, told.how) == (1, 1, "already")
    assert scene.slurm.job(1).held
    hands.stop()


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_launchers_successor_is_seen_in_the_place_of_our_job(scene: Scene, forgotten: bool) -> None:
    assert scene.successor() == 2
    scene.slurm.cancel(1)
    scene.slurm.tick(5)
    if forgotten:
        scene.slurm.forget(1)
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen)
    assert (seen.job_id, seen.succeeds, seen.state, seen.held_why) == (2, 1, "RUNNING", "")


def test_while_our_job_lives_nothing_takes_its_place(scene: Scene) -> None:
    scene.successor("--hold")
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen) and (seen.job_id, seen.succeeds) == (1, 0)


@pytest.mark.parametrize("told", [False, True])
def test_a_held_successor_counts_once_its_launcher_tells_of_it(scene: Scene, told: bool) -> None:
    """Else its submission was cut off, and nobody but a restart would release it."""
    scene.successor("--hold")
    scene.slurm.finish(1, 1)
    if told:
        scene.handed("held", 2, 0)
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen) and seen.job_id == (2 if told else 1)
    assert seen.held_why == (WHY if told else "")


def test_jobs_of_others_and_one_that_was_cancelled_before_it_ran_take_no_place(scene: Scene) -> None:
    scene.submit("transom:run-11:after-1.0")
    scene.submit(scene.tag)
    scene.successor(of="11.0")
    scene.slurm.cancel(scene.successor("--hold"))
    scene.slurm.finish(1, 1)
    seen = scene.look()
    assert isinstance(seen, ev.JobSeen) and (seen.job_id, seen.state) == (1, "FAILED")


@pytest.mark.parametrize("held", [False, True])
def test_a_restart_takes_the_launchers_successor_over_and_submits_no_other(scene: Scene, held: bool) -> None:
    """held: its launcher died before it released it."""
    scene.successor(*(["--hold"] if held else []))
    scene.slurm.finish(1, 1)
    hands, out = scene.hands()
    hands.do(Restart("i1/restart", 1, 0, 2, (), ()))
    told = out.get(timeout=30)
    assert isinstance(told, ev.Restarted) and (told.job_id, told.restarts, told.how) == (2, 0, "successor")
    scene.slurm.tick(5)
    assert scene.slurm.job(2).state is JobState.RUNNING and len(scene.slurm.jobs()) == 2
    hands.stop()


def test_the_end_of_a_run_is_that_of_its_successor_too(scene: Scene) -> None:
    scene.successor()
    other = scene.submit("transom:run-11")
    hands, out = scene.hands()
    hands.do(Cancel("cancel/1.0", 1))
    assert isinstance(out.get(timeout=30), ev.Acted)
    assert [job.job_id for job in scene.slurm.jobs() if not job.state.ended] == [other]
    hands.stop()


def test_the_first_submission_is_found_by_the_first_word_of_its_comment(scene: Scene) -> None:
    scene.slurm.set_comment(1, f"{scene.tag} held: x")
    hands, _ = scene.hands()
    assert [job.job_id for job in hands._submitted()] == [1]
    hands.stop()
