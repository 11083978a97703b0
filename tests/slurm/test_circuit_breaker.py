"""All that one process asks of a Slurm that does not answer, taken together."""

from __future__ import annotations

import pytest
from slurm_fake import FakeSlurm

from transom_cli.slurm.guards import TRIAL_WAIT, CircuitBreaker, CircuitOpen, with_circuit_breaker
from transom_cli.slurm.port import Job, JobState, NoSuchJob, SlurmUnknown

MINUTE = 60.0


class Sick(FakeSlurm):
    """Answers when it is well; otherwise each ask takes `hangs` seconds and is not answered. What is asked is kept."""

    def __init__(self, hangs: float = 0.0) -> None:
        super().__init__()
        self.time, self.hangs, self.well = 0.0, hangs, False
        self.asked: list[float] = []

    def clock(self) -> float:
        return self.time

    def job(self, job_id: int) -> Job:
        self.asked.append(self.time)
        self.time += self.hangs
        if not self.well:
            raise SlurmUnknown("Slurm did not answer `scontrol show`", "Slurm said: Socket timed out", "scontrol ping")
        if job_id == 404:
            raise NoSuchJob("Slurm does not know this job (any more)")
        return Job(job_id, JobState.RUNNING)

    def history(self, job_id: int) -> list[object]:  # type: ignore[override]
        raise SlurmUnknown("no accounting")


@pytest.mark.parametrize(("hangs", "first", "all_of_it"), [(0.0, 7, 26), (10.0, 5, 19), (30.0, 2, 13)])
def test_who_never_waits_reaches_a_sick_slurm_a_few_times_a_minute(hangs: float, first: int, all_of_it: int) -> None:
    """Ten minutes of somebody who asks a hundred times a second."""
    sick = Sick(hangs)
    slurm, tries = with_circuit_breaker(sick, CircuitBreaker(sick.clock)), 0
    while sick.time < 10 * MINUTE:
        tries += 1
        with pytest.raises(SlurmUnknown):
            slurm.job(7)
        sick.time += 0.01
    assert tries > 20_000
    assert sum(at < MINUTE for at in sick.asked) <= first and len(sick.asked) <= all_of_it
    assert len([at for at in sick.asked if at >= MINUTE]) <= 2 * 9


def test_skipped_call_quotes_slurm_and_the_retry_time() -> None:
    sick = Sick()
    slurm = with_circuit_breaker(sick, CircuitBreaker(sick.clock))
    with pytest.raises(SlurmUnknown) as first:
        slurm.job(7)
    sick.time = 0.2
    with pytest.raises(CircuitOpen) as early:
        slurm.job(8)
    assert str(early.value) == str(first.value) and early.value.seconds == pytest.approx(0.3)
    assert sick.asked == [0.0]


def test_one_finds_out_and_the_others_wait_for_it() -> None:
    breaker = CircuitBreaker(lambda: 100.0)
    breaker.failed(breaker.enter(), SlurmUnknown("no answer"))
    breaker._not_before = 99.0
    trial = breaker.enter()
    with pytest.raises(CircuitOpen) as other:
        breaker.enter()
    assert other.value.seconds == TRIAL_WAIT
    breaker.answered()
    assert breaker.enter() == breaker.enter() == 0 != trial


def test_calls_that_were_under_way_together_count_as_one() -> None:
    breaker = CircuitBreaker(lambda: 0.0)
    for entered in [breaker.enter() for _ in range(16)]:
        breaker.failed(entered, SlurmUnknown("no answer"))
    with pytest.raises(CircuitOpen) as early:
        breaker.enter()
    assert early.value.seconds == 0.5, "the first step of the back-off, not the sixteenth"


def test_any_answer_lets_all_through_again() -> None:
    """That a job is not known is an answer."""
    sick = Sick()
    slurm = with_circuit_breaker(sick, CircuitBreaker(sick.clock))
    for _ in range(5):
        with pytest.raises(SlurmUnknown):
            slurm.job(7)
        sick.time += 60.0
    sick.well = True
    with pytest.raises(NoSuchJob):
        slurm.job(404)
    assert slurm.job(7).state is JobState.RUNNING
    sick.well = False
    with pytest.raises(SlurmUnknown):
        slurm.job(7)
    sick.time += 0.5
    with pytest.raises(SlurmUnknown) as again:
        slurm.job(7)
    assert not isinstance(again.value, CircuitOpen), "the back-off begins again"


def test_accounting_that_does_not_answer_says_nothing_of_slurmctld() -> None:
    sick = Sick()
    sick.well = True
    slurm = with_circuit_breaker(sick, CircuitBreaker(sick.clock))
    with pytest.raises(SlurmUnknown):
        slurm.history(7)
    assert slurm.job(7).job_id == 7


def test_internal_error_releases_waiting_callers() -> None:
    class Broken(FakeSlurm):
        def job(self, job_id: int) -> Job:
            raise ValueError("nonsense in a column")

    slurm = with_circuit_breaker(Broken(), CircuitBreaker(lambda: 0.0))
    for _ in range(3):
        with pytest.raises(ValueError, match="nonsense"):
            slurm.job(7)
