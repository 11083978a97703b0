"""When the operator asks Slurm: seldom while all is calm, and at once when something changes."""

from __future__ import annotations

import queue
import time

from transom_cli.core.events import Event, JobSeen
from transom_cli.core.incident import Incident
from transom_cli.core.operator.cadence import Cadence, Pause
from transom_cli.core.operator.state import Job as RunJob
from transom_cli.core.operator.state import Phase, State
from transom_cli.slurm.port import Job, JobState
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Pace
from transom_cli.supervise.operator.slurm_poller import SlurmPoller

CALM = State(phase=Phase.TRAINING, job=RunJob(id=7, state="RUNNING"))
FINISHING = State(phase=Phase.FINISHING, job=RunJob(id=7))
HOUR = 3600.0


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class FinishedSlurm:
    def job(self, job_id: int) -> Job:
        return Job(job_id, JobState.COMPLETED)


def calm_pace() -> tuple[Pace, Time]:
    clock = Time()
    pace = Pace(Cadence(), clock, lambda: 0.5)
    pace.notice(CALM, launcher_lives=True)
    clock.now += HOUR
    return pace, clock


def test_calm_days_are_asked_about_every_minute_and_a_half() -> None:
    pace, _ = calm_pace()
    assert pace.calm and pace(0.01).seconds == 90.0


def test_the_end_of_a_calm_time_is_noticed_once() -> None:
    pace, _ = calm_pace()
    assert not pace.notice(CALM, launcher_lives=True)
    assert pace.notice(FINISHING, launcher_lives=True)
    assert not pace.notice(FINISHING, launcher_lives=True)
    assert not pace.calm and pace(0.01).seconds == 1.0


def test_an_incident_ends_the_calm_too() -> None:
    pace, _ = calm_pace()
    incident = Incident("i1", 7, 0, 10.0, 3)
    assert pace.notice(State(phase=Phase.TRAINING, incident=incident, job=RunJob(id=7)), launcher_lives=True)


def test_a_launcher_that_falls_silent_is_worth_a_question_at_once() -> None:
    pace, _ = calm_pace()
    assert pace.notice(CALM, launcher_lives=False)
    assert pace.delay == 0.0
    assert pace(0.01).seconds == 1.0


def test_the_first_sign_of_a_launcher_is_worth_one_question() -> None:
    pace, clock = calm_pace()
    pace.notice(CALM, launcher_lives=False)
    clock.now += HOUR
    assert pace.notice(CALM, launcher_lives=True)
    assert pace(0.01).seconds == 90.0


def test_a_launcher_that_ended_before_a_requeue_is_not_silent() -> None:
    pace, _ = calm_pace()
    requeued = State(phase=Phase.RECOVERING, job=RunJob(id=7, restarts=1, state="PENDING"))
    assert pace.notice(requeued, launcher_lives=True)  # files are still those of the attempt before
    pace.notice(requeued, launcher_lives=False)
    assert pace.delay > 0.0
    started = State(phase=Phase.RECOVERING, job=RunJob(id=7, restarts=1, state="RUNNING"))
    pace.notice(started, launcher_lives=False)
    assert pace.delay > 0.0


def test_a_delayed_look_takes_an_answer_from_the_meantime() -> None:
    ages: list[float] = []

    def ask(job_id: int, age: float) -> Job:
        ages.append(age)
        return Job(job_id, JobState.RUNNING)

    out: queue.SimpleQueue[Event] = queue.SimpleQueue()
    watch = SlurmPoller(FinishedSlurm(), Clock(), out, lambda _took: Pause(5.0, 5.0), ask=ask)  # type: ignore[arg-type]
    watch.follow(7, 0, ())
    watch.start()
    try:
        out.get(timeout=30)
        began = time.monotonic()
        watch.look(0.2)
        out.get(timeout=30)
        assert 0.2 <= time.monotonic() - began < 5.0
        watch.look(60.0)
        watch.look()  # urgent: it replaces the delay
        out.get(timeout=30)
    finally:
        watch.stop()
    assert ages == [0.0, 0.2, 0.0]


def test_a_later_look_does_not_put_off_an_earlier_one() -> None:
    out: queue.SimpleQueue[Event] = queue.SimpleQueue()
    now, slurm, clock = [0.0], FinishedSlurm(), Clock()
    pace = Pause(HOUR, 0.0)
    watch = SlurmPoller(slurm, clock, out, lambda _took: pace, now=lambda: now[0])  # type: ignore[arg-type]
    watch.follow(7, 0, ())
    watch.start()
    try:
        out.get(timeout=30)
        watch._thread.join(30)
        watch.look(10.0)
        watch.look(1000.0)
        now[0] = 11.0
        watch.follow(7, 0, ())
        assert isinstance(out.get(timeout=30), JobSeen)
    finally:
        watch.stop()


def test_a_look_does_not_wait_for_its_turn() -> None:
    out: queue.SimpleQueue[Event] = queue.SimpleQueue()
    watch = SlurmPoller(FinishedSlurm(), Clock(), out, lambda _took: Pause(HOUR, 0.0))  # type: ignore[arg-type]
    watch.follow(7, 0, ())
    watch.start()
    try:
        first = out.get(timeout=30)
        watch.look()
        second = out.get(timeout=30)  # an hour too early
    finally:
        watch.stop()
    assert isinstance(first, JobSeen) and isinstance(second, JobSeen)
