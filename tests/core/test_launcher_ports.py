"""The launcher's core: a launch whose rendezvous port was taken is started again, and costs no budget."""

from __future__ import annotations

import pytest
from core_launcher import NODES, exits, feed, fresh, outcome, started

from transom_cli.core import launcher
from transom_cli.core.launcher import Action, State

LINE = "DistNetworkError: The server socket has failed to listen on any local network address. port: 12345"


def begun(**policy: float) -> State:
    return feed(fresh(**policy), launcher.AttemptStarted(0.0))[0]


def failed(state: State, *, taken: bool, step: int = -1) -> tuple[State, list[Action]]:
    """Rank 0 fails, its launch is ended, and the logs say why."""
    number, at = state.launch.number, state.since
    if step >= 0:
        state, _ = feed(state, launcher.Stepped(at + 1, number, step))
    return feed(
        state,
        launcher.RanksExited(at + 2, number, exits(1, -15, -15)),
        launcher.LaunchEnded(at + 3, number),
        launcher.LogsRead(at + 4, number, "rendezvous_port", LINE, "rank-0.log", taken),
    )


def free_relaunches(state: State) -> int:
    """How many launches in a row fail for their port before the attempt ends or is charged."""
    count, spent = 0, state.budget.relaunches
    while True:
        state, actions = failed(state, taken=True)
        if not started(actions) or state.budget.relaunches != spent:
            return count
        count += 1


def test_a_taken_port_is_relaunched_on_the_same_nodes_and_costs_no_relaunch() -> None:
    state, actions = failed(begun(), taken=True)
    assert started(actions) == [NODES]
    assert state.budget.relaunches == ()
    (words,) = [a.words for a in actions if isinstance(a, launcher.Journal) and a.what == "decided"]
    assert "costs no budget" in words


def test_the_same_failure_without_a_taken_port_is_charged() -> None:
    state, actions = failed(begun(), taken=False)
    assert started(actions) == [NODES]
    assert state.budget.relaunches == (("rank_failed", 1),)


def test_a_taken_port_costs_no_restart_where_relaunches_are_disabled() -> None:
    state, actions = failed(begun(relaunches=0), taken=True)
    assert started(actions) == [NODES]
    _, actions = failed(state, taken=False)
    assert outcome(actions).outcome.status == "failed"


def test_a_port_that_is_always_taken_ends_the_attempt() -> None:
    assert free_relaunches(begun(ports_taken=5)) == 5
    state, launches = begun(), 0
    while state.phase is not launcher.Phase.OVER:
        state, actions = failed(state, taken=True)
        launches += len(started(actions))
    assert launches == 5 + 3, "five for nothing, then the three of the budget"


def test_another_failure_in_between_restarts_the_count() -> None:
    state = begun()
    for _ in range(4):
        state, _ = failed(state, taken=True)
    assert state.budget.ports_taken == 4
    state, _ = failed(state, taken=False)
    assert state.budget.ports_taken == 0 and state.budget.relaunches == (("rank_failed", 1),)
    assert free_relaunches(state) == 5


@pytest.mark.parametrize("step", [0, 7])
def test_a_launch_that_has_stepped_did_not_fail_for_its_port(step: int) -> None:
    """Its store was there: the line is about another port."""
    state, _ = failed(begun(), taken=True, step=step)
    assert state.budget.relaunches == (("rank_failed", 1),)
