"""JobLaunchFailure is Slurm's word for a batch script that did not start, and for one that somebody killed."""

from __future__ import annotations

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Probe, ReadLogs, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Request, State

NODES = ("n1", "n2")


def end(signal: int) -> State:
    """A first attempt that ended before its launcher wrote a word."""
    ended = ev.JobSeen(
        3.0, 7, 0, "FAILED", reason="JobLaunchFailure", nodes=NODES, batch_host="n1", exit_code=0, exit_signal=signal
    )
    begun = (
        ev.Started(0.0, 1),
        ev.Submitted(1.0, "submit", 7, released=True),
        ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
    )
    state = State(request=Request(num_nodes=2))
    todo: list[ev.Event] = [*begun, ended]
    at = 3.0
    while todo:
        state, actions = decide(state, todo.pop(0))
        for action in actions:
            at += 0.1
            if isinstance(action, ReadLogs):
                todo.append(ev.Examined(at, action.key, "unknown", "", ""))
            if isinstance(action, Probe):
                todo.append(ev.Probed(at, action.key, action.node, "PASS", "slurmd accepts connections"))
        if not todo and at < 60.0 and not state.phase.over:
            at += 5.0
            todo.append(ev.Tick(at))
    return state


@pytest.mark.parametrize("signal", [9, 15])
def test_a_batch_script_that_was_killed_is_restarted(signal: int) -> None:
    state = end(signal)
    assert state.phase is Phase.RECOVERING and any(isinstance(action, Restart) for action in state.pending)
    assert state.incident is not None and f"by signal {signal}" in state.incident.marks[0].words


def test_one_that_slurm_could_not_start_the_first_time_is_not() -> None:
    state = end(53)
    assert (state.phase, state.exit_code) == (Phase.FAILED, 14)
    assert "Slurm could not start the batch script on n1" in state.verdict
