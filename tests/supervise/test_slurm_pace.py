"""How often Slurm is asked: seldom while all is calm, and at once when something begins to move."""

from __future__ import annotations

import queue

from transom_cli.core.events import Event, JobSeen
from transom_cli.core.incident import Incident
from transom_cli.core.operator.state import Job as RunJob
from transom_cli.core.operator.state import Phase, State
from transom_cli.slurm.port import Job, JobState
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Pace
from transom_cli.supervise.operator.slurm_poller import SlurmPoller

CALM = State(phase=Phase.TRAINING, job=RunJob(id=7))
FINISHING = State(phase=Phase.FINISHING, job=RunJob(id=7))


class FinishedSlurm:
    def job(self, job_id: int) -> Job:
        return Job(job_id, JobState.COMPLETED)


def test_calm_days_slow_the_looks_down_to_the_most() -> None:
    pace = Pace(2.0, 30.0)
    pace.notice(CALM)
    waits = [pace() for _ in range(12)]
    assert waits == sorted(waits) and waits[0] > 2.0 and waits[-1] == 30.0


def test_the_end_of_a_calm_time_is_told_once() -> None:
    pace = Pace(2.0, 30.0)
    assert not pace.notice(CALM)
    assert pace.notice(FINISHING)
    assert not pace.notice(FINISHING)
    assert pace() == 1.0


def test_an_incident_ends_the_calm_too() -> None:
    pace = Pace(2.0, 30.0)
    pace.notice(CALM)
    assert pace.notice(State(phase=Phase.TRAINING, incident=Incident("i1", 7, 0, 10.0, 3), job=RunJob(id=7)))


def test_a_look_does_not_wait_for_its_turn() -> None:
    out: queue.SimpleQueue[Event] = queue.SimpleQueue()
    watch = SlurmPoller(FinishedSlurm(), Clock(), out, lambda: 3600.0)  # type: ignore[arg-type]
    watch.follow(7, 0, ())
    watch.start()
    try:
        first = out.get(timeout=30)
        watch.look()
        second = out.get(timeout=30)  # an hour too early
    finally:
        watch.stop()
    assert isinstance(first, JobSeen) and isinstance(second, JobSeen)
