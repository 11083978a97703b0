"""A run's submissions: at most one job is known to be its own, whatever the site makes of comments and listings."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Request, State
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, SlurmUnknown, Submission
from transom_cli.supervise.operator import executor as hands_module
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders

LOST = SlurmUnknown("Slurm did not answer `sbatch`", "Socket timed out on send/recv operation")
RULE = "project:physics"  # what a site's job_submit plugin makes of every comment


class Run:
    """The core and its hands on a cluster in memory, as the operator's loop connects them."""

    def __init__(self, folder: Path, slurm: FakeSlurm) -> None:
        self.slurm, self.folder = slurm, folder
        self.state = State(request=Request(num_nodes=2))
        self.history: list[ev.Event] = []
        self.attach()

    def attach(self) -> None:
        """A new operator takes the run up from its journal."""
        self.inbox: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        orders = Orders(RunDir(self.folder), Submission(self.folder / "job.sbatch", ("--nodes=2",)))
        self.hands = Executor(
            orders, self.slurm, lambda *_: Finding("reach", Verdict.PASS, "n1", ""), Clock(), self.inbox
        )
        self.state = State(request=Request(num_nodes=2))
        for event in self.history:
            self.state, _ = decide(self.state, event)
        self.hands.remember(self.state.submissions)
        self.feed(ev.Started(0.0, 1))

    def feed(self, event: ev.Event) -> None:
        self.history.append(event)
        self.state, actions = decide(self.state, event)
        for action in actions:
            self.hands.do(action)

    def until(self, *phases: Phase, patience: float = 10.0) -> State:
        deadline = time.monotonic() + patience
        while self.state.phase not in phases and time.monotonic() < deadline:
            try:
                self.feed(self.inbox.get(timeout=0.05))
            except queue.Empty:
                if self.state.job.id:  # as the operator's poller reports it
                    job = self.slurm.job(self.state.job.id)
                    self.feed(ev.JobSeen(0.0, job.job_id, job.restarts, job.state.value, held=job.held))
        assert self.state.phase in phases, (self.state.phase, self.state.verdict)
        return self.state

    @property
    def jobs(self) -> list[tuple[int, JobState, bool]]:
        return [(job.job_id, job.state, job.held) for job in self.slurm.cluster.jobs.values()]

    @property
    def submissions(self) -> int:
        return sum(call[0] == "submit" for call in self.slurm.calls)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setattr(hands_module, "backoff", lambda tries: 0.01)
    monkeypatch.setattr(hands_module, "LATE", 0.1)
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\n")
    return FakeSlurm()


@pytest.fixture
def run(tmp_path: Path, slurm: FakeSlurm) -> Iterator[Run]:
    slurm.comment_rule = RULE
    made = Run(tmp_path, slurm)
    yield made
    made.hands.stop()


def test_site_that_rewrites_comments_gets_one_job_and_it_is_released(run: Run) -> None:
    assert run.until(Phase.PENDING).job.id == 1
    assert run.jobs == [(1, JobState.PENDING, False)]


def test_job_that_is_not_listed_is_believed_by_the_id_that_sbatch_returned(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.comment_rule, slurm.unlisted = RULE, {1}
    run = Run(tmp_path, slurm)
    assert run.until(Phase.PENDING).job.id == 1
    assert run.jobs == [(1, JobState.PENDING, False)]
    run.hands.stop()


def test_lost_answer_is_found_by_the_script_where_the_comment_is_rewritten(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.comment_rule = RULE
    slurm.fail_next("submit", LOST, after=True)
    run = Run(tmp_path, slurm)
    assert run.until(Phase.PENDING).job.id == 1
    assert run.jobs == [(1, JobState.PENDING, False)]
    run.hands.stop()


def test_operator_that_dies_after_sbatch_answered_leaves_one_job_to_the_next(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.comment_rule, slurm.unlisted = RULE, {1}
    slurm.fail_next("release", LOST)
    run = Run(tmp_path, slurm)
    while not any(isinstance(event, ev.SubmissionAnswered) for event in run.history):
        run.feed(run.inbox.get(timeout=10))
    run.hands.stop()
    run.hands._pool.shutdown(wait=True)
    run.attach()
    assert run.until(Phase.PENDING).job.id == 1
    assert run.submissions == 1
    run.hands.stop()


def test_two_submissions_without_an_answer_and_without_a_job_end_the_run(tmp_path: Path, slurm: FakeSlurm) -> None:
    lose = slurm.submit.__func__  # type: ignore[attr-defined]

    def lost(submission: Submission) -> int:
        slurm.unlisted.add(lose(slurm, submission))
        raise LOST

    slurm.submit = lost  # type: ignore[method-assign]
    run = Run(tmp_path, slurm)
    state = run.until(Phase.FAILED)
    assert run.submissions == 2
    assert "two submissions" in state.verdict and "squeue --me" in state.verdict, state.verdict
    run.hands.stop()


def test_controller_that_never_took_the_request_is_asked_as_often_as_it_takes(tmp_path: Path, slurm: FakeSlurm) -> None:
    away = ["Batch job submission failed: Unable to contact slurm controller (connect failure)"] * 4
    take = slurm.submit.__func__  # type: ignore[attr-defined]

    def refuse(submission: Submission) -> int:
        if away:
            raise SlurmUnknown("Slurm did not answer `sbatch`", f"Slurm said: sbatch: error: {away.pop()}")
        return int(take(slurm, submission))

    slurm.submit = refuse  # type: ignore[method-assign]
    run = Run(tmp_path, slurm)
    assert run.until(Phase.PENDING).job.id == 1
    run.hands.stop()


@pytest.mark.parametrize("phase", ["held", "pending", "running"])
def test_stop_cancels_a_job_whose_comment_was_rewritten(run: Run, phase: str) -> None:
    run.until(Phase.PENDING)
    if phase == "held":
        run.slurm.hold_behind(1)
    if phase == "running":
        run.slurm.start_pending()
    run.feed(ev.StopRequested(1.0, "ann"))
    run.until(Phase.STOPPED)
    assert [job[1] for job in run.jobs] == [JobState.CANCELLED]


def test_stop_cancels_every_job_that_a_submission_returned(run: Run) -> None:
    """A second job of this run that neither its comment nor its script tells."""
    run.until(Phase.PENDING)
    (run.folder / "copy.sbatch").write_text("#!/bin/sh\n")
    other = run.slurm.submit(Submission(run.folder / "copy.sbatch", ("--hold",)))
    strange = run.slurm.submit(Submission(run.folder / "copy.sbatch", ("--hold",)))
    run.feed(ev.SubmissionAnswered(1.0, "i1/restart", other))
    run.hands.remember(run.state.submissions)
    run.feed(ev.StopRequested(1.0, "ann"))
    run.until(Phase.STOPPED)
    assert {number: state for number, state, _ in run.jobs} == {
        1: JobState.CANCELLED, other: JobState.CANCELLED, strange: JobState.PENDING
    }  # fmt: skip


def test_stop_while_sbatch_is_under_way_cancels_what_it_returns(tmp_path: Path, slurm: FakeSlurm) -> None:
    begun, go_on = threading.Event(), threading.Event()
    take = slurm.submit.__func__  # type: ignore[attr-defined]

    def slow(submission: Submission) -> int:
        begun.set()
        go_on.wait(10)
        return int(take(slurm, submission))

    slurm.comment_rule = RULE
    slurm.submit = slow  # type: ignore[method-assign]
    run = Run(tmp_path, slurm)
    assert begun.wait(10)
    run.feed(ev.StopRequested(1.0, "ann"))
    go_on.set()
    run.until(Phase.STOPPED)
    assert [(number, state) for number, state, _ in run.jobs] == [(1, JobState.CANCELLED)]
    run.hands.stop()


def test_stop_ends_a_run_whose_submission_slurm_does_not_answer(tmp_path: Path, slurm: FakeSlurm) -> None:
    def away(submission: Submission) -> int:
        raise SlurmUnknown("Slurm did not answer `sbatch`", "Unable to contact slurm controller (connect failure)")

    slurm.submit = away  # type: ignore[method-assign]
    run = Run(tmp_path, slurm)
    run.feed(run.inbox.get(timeout=10))
    run.feed(ev.StopRequested(1.0, "ann"))
    assert run.until(Phase.STOPPED).exit_code == 130
    assert run.jobs == []
    run.hands.stop()
