"""A slurmctld that died before it wrote down that we released the job: it is released again; a person's hold is not."""

from __future__ import annotations

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action, Release, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Request, State

NODES = ("n1", "n2")
SUBMITTED = ev.Submitted(1.0, "submit", 7, released=True)
RUNS = ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1")
WAITS = ev.JobSeen(2.0, 7, 0, "PENDING", reason="Resources")


def held(at: float, reason: str = "JobHeldUser", restarts: int = 0, why: str = "") -> ev.JobSeen:
    return ev.JobSeen(at, 7, restarts, "PENDING", held=True, reason=reason, held_why=why)


def ticks(at: float) -> tuple[ev.Event, ...]:
    return tuple(ev.Tick(at + 5.0 * n) for n in range(9))


def play(*events: ev.Event) -> tuple[State, list[Action]]:
    state, ordered = State(request=Request(num_nodes=2)), []
    for event in (ev.Started(0.0, 1), *events):
        state, actions = decide(state, event)
        ordered += actions
    return state, ordered


def releases(*events: ev.Event) -> list[Action]:
    return [action for action in play(*events)[1] if isinstance(action, Release)]


@pytest.mark.parametrize("before", [(), (RUNS,), (WAITS, RUNS)], ids=["submitted", "ran", "waited and ran"])
def test_a_release_that_slurm_forgot_is_made_again(before: tuple[ev.Event, ...]) -> None:
    again = [Release("release/7.0", 7)]
    assert releases(SUBMITTED, *before, held(20.0), held(21.0), *ticks(21.0)) == again
    assert not releases(SUBMITTED, *before, held(20.0), ev.Tick(49.0)), "its old start is to be gone first"
    state, _ = play(SUBMITTED, *before, held(20.0), *ticks(20.0), ev.Acted(65.0, "release/7.0", "released"), WAITS)
    assert state.phase is Phase.PENDING and not state.verdict


def test_one_release_is_made_again_and_no_more() -> None:
    """Whoever holds it a second time means it, or could: no tug-of-war."""
    acted = ev.Acted(65.0, "release/7.0", "released")
    assert len(releases(SUBMITTED, held(20.0), *ticks(20.0), acted, RUNS, held(80.0), *ticks(80.0))) == 1


@pytest.mark.parametrize(
    "events",
    [
        (SUBMITTED, WAITS, held(20.0)),
        (ev.Submitted(1.0, "submit", 7), held(20.0)),
        (SUBMITTED, RUNS, held(20.0, restarts=1)),
        (SUBMITTED, RUNS, held(20.0, "job_requeued_in_held_state", restarts=1)),
        (SUBMITTED, held(20.0, "JobHeldAdmin")),
        (SUBMITTED, RUNS, held(20.0, why="no progress in 4 attempts")),
    ],
    ids=["after it waited", "by its script", "requeued, then held", "requeuehold", "by an admin", "by its launcher"],
)
def test_what_somebody_else_holds_stays_held(events: tuple[ev.Event, ...]) -> None:
    state, ordered = play(*events, *ticks(20.0))
    assert state.phase is Phase.HELD
    assert not [action for action in ordered if isinstance(action, Release)]


def test_the_release_after_a_restart_may_be_forgotten_too() -> None:
    fault = ev.JobSeen(10.0, 7, 0, "NODE_FAIL", nodes=NODES, exit_code=1, exit_signal=0)
    state, ordered = play(SUBMITTED, RUNS, ev.LaunchSeen(4.0, "7.0", 0, NODES, 2), ev.StepSeen(5.0, "7.0", 3), fault)
    at = 10.0
    while not any(isinstance(action, Restart) for action in ordered):
        at += 5.0
        assert at < 200.0, ordered
        answers = [ev.Probed(at, a.key, a.node, "PASS", "") for a in ordered if type(a).__name__ == "Probe"]
        answers += [ev.Examined(at, a.key, "unknown", "", "") for a in ordered if type(a).__name__ == "ReadLogs"]
        for event in (*answers, ev.Tick(at)):
            state, actions = decide(state, event)
            ordered += actions
    (restart,) = (action for action in ordered if isinstance(action, Restart))
    state, _ = decide(state, ev.Restarted(at, restart.key, 7, 1, "requeued"))
    state, _ = decide(state, held(at + 9.0, "job_requeued_in_held_state", restarts=1))
    assert decide(state, ev.Tick(at + 40.0))[1] == (Release("release/7.1", 7),)


FAILED_AGAIN = held(21.0, "launch_failed_requeued_held", restarts=1)


def test_a_start_that_slurm_forgot_and_could_not_make_twice_is_let_go() -> None:
    """It starts the job beside what still runs of it, fails, and holds the job; a person would release it."""
    gone = ev.JobSeen(20.0, 7, 0, "PENDING", reason="None")
    assert releases(SUBMITTED, RUNS, gone, FAILED_AGAIN) == [Release("release/7.1", 7)]


def test_a_launch_that_failed_by_itself_stays_held() -> None:
    assert not releases(SUBMITTED, RUNS, FAILED_AGAIN, *ticks(22.0))


@pytest.mark.parametrize("again", [(), (RUNS,)], ids=["at once", "after it ran again"])
def test_a_person_that_requeues_and_holds_a_job_that_slurm_forgot_once_is_left_alone(
    again: tuple[ev.Event, ...],
) -> None:
    gone = ev.JobSeen(20.0, 7, 0, "PENDING", reason="None")
    theirs = held(30.0, "job_requeued_in_held_state", restarts=1)
    assert not releases(SUBMITTED, RUNS, gone, *again, theirs, *ticks(31.0))


def test_a_launch_that_fails_long_after_slurm_forgot_the_start_stays_held() -> None:
    gone = ev.JobSeen(20.0, 7, 0, "PENDING", reason="None")
    assert not releases(SUBMITTED, RUNS, gone, RUNS, FAILED_AGAIN, *ticks(31.0))
