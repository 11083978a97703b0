"""What hundreds of runs ask of Slurm, counted: the real pollers on a simulated clock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from neighbour_slurm import (
    AT_ONCE,
    CALLS,
    SPAN,
    STATES,
    USER_CALLS,
    CountingSlurm,
    Time,
    first_minute,
    mix,
    rates,
    simulate,
)

from transom_cli.core.operator.cadence import SHARED
from transom_cli.core.operator.state import State
from transom_cli.errors import TransomError
from transom_cli.slurm.port import Job, JobState, SlurmUnknown
from transom_cli.slurm.shared import RunSlurm, SharedSlurm

RUNS = 600


@pytest.mark.parametrize("name", [*STATES, "mixed"])
def test_six_hundred_runs_stay_within_the_budgets(name: str) -> None:
    states: list[State | None] = mix(RUNS) if name == "mixed" else [STATES[name]] * RUNS
    in_all, of_one_user = rates(states)
    assert in_all <= CALLS and of_one_user <= USER_CALLS


@pytest.mark.parametrize("what", AT_ONCE)
def test_six_hundred_runs_that_change_in_the_same_second_stay_within_the_budget(what: str) -> None:
    state, signs = AT_ONCE[what]
    assert 0.0 < first_minute([state] * RUNS, signs=signs) <= CALLS


@pytest.mark.parametrize(("runs", "within"), [(1, 3.0), (6, SHARED + 1.0)])
def test_a_job_that_starts_is_asked_about(runs: int, within: float) -> None:
    """runs: of one user, whose launchers give their first sign of life together."""
    (calls,) = simulate([STATES["pending"]] * runs, warm=0.0, signs=(30.0, 30.5))
    assert [at for at in calls if 30.0 < at <= 30.5 + within]
    assert len([at for at in calls if at < 60.0]) <= 4


def test_a_slow_slurm_is_kept_busy_for_one_per_cent_of_the_time() -> None:
    took = 3.0
    (calls,) = simulate([STATES["pending"]] * 6, took=took)
    assert 0 < len(calls) * took / SPAN <= 0.015


class Jobs(CountingSlurm):
    """Two jobs of one user; `error` is raised instead of an answer."""

    error: TransomError | None = None

    def _call(self) -> None:
        super()._call()
        if self.error is not None:
            raise self.error


def shared_by_two() -> tuple[SharedSlurm, Jobs, Time]:
    time = Time(1000.0)
    slurm = Jobs(time, 0.1, {1: JobState.PENDING, 2: JobState.RUNNING})
    shared = SharedSlurm(slurm, str, time)  # type: ignore[arg-type]
    shared.count(2)
    return shared, slurm, time


def test_one_list_answers_for_all_runs_of_a_user() -> None:
    shared, slurm, time = shared_by_two()
    assert shared.ask(1, 30.0).state is JobState.PENDING
    assert shared.ask(2, 30.0).state is JobState.RUNNING
    assert len(slurm.calls) == 1
    time.now += 31.0
    shared.ask(1, 30.0)
    assert len(slurm.calls) == 2


def test_after_a_change_an_old_answer_does_not_do() -> None:
    shared, slurm, _ = shared_by_two()
    shared.ask(1, 30.0)
    slurm.states[1] = JobState.RUNNING
    assert shared.ask(1, 0.0).state is JobState.RUNNING


def test_a_job_that_the_list_lacks_is_asked_about_by_itself() -> None:
    shared, slurm, _ = shared_by_two()
    slurm.jobs = list  # type: ignore[method-assign]
    assert shared.ask(2, 30.0) == Job(2, JobState.RUNNING)


def test_a_suspended_job_is_asked_about_once_more() -> None:
    """The list does not say since when."""
    shared, slurm, time = shared_by_two()
    slurm.states[2] = JobState.SUSPENDED
    shared.ask(2, 0.0)
    assert len(slurm.calls) == 2
    time.now += 60.0
    shared.ask(2, 30.0)
    assert len(slurm.calls) == 3


def test_who_waited_for_a_question_that_failed_does_not_repeat_it() -> None:
    shared, slurm, _ = shared_by_two()
    slurm.error = SlurmUnknown("Slurm did not answer", "timed out")
    with pytest.raises(SlurmUnknown):
        shared.ask(1, 30.0)
    with pytest.raises(SlurmUnknown):
        shared._call(slurm.jobs, since=999.0)  # it began to wait before the failed question was asked
    assert len(slurm.calls) == 1


def test_the_clusters_name_is_read_again_after_an_outage() -> None:
    names: list[str] = []
    shared = SharedSlurm(Jobs(Time(), 0.0), lambda: names.append("alps") or "alps")  # type: ignore[arg-type, func-returns-value]
    assert [shared.cluster_name(), shared.cluster_name()] == ["alps", "alps"] and len(names) == 1
    shared.breaker.failed(shared.breaker.enter(), SlurmUnknown("no answer"))
    shared.cluster_name()
    assert len(names) == 2


def test_list_from_before_a_change_says_nothing_about_its_job() -> None:
    """A list from between `sbatch --hold` and our release shows a job that nobody holds as held."""
    shared, slurm, time = shared_by_two()
    slurm.release = slurm.submit = lambda job_id: None  # type: ignore[attr-defined]
    run = RunSlurm(shared, slurm)  # type: ignore[arg-type]
    shared.ask(1, 30.0)
    time.now += 0.1
    run.release(1)
    shared.ask(2, 30.0)
    assert len(slurm.calls) == 1, "the other job has not changed"
    shared.ask(1, 30.0)
    shared.ask(1, 30.0)
    assert len(slurm.calls) == 2
