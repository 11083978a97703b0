"""A script without a launcher: nobody sees its steps, so an error of its own ends the run only soon after its start."""

from __future__ import annotations

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Probe, ReadLogs, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Request, State
from transom_cli.view.model import build_view
from transom_cli.view.outlook import next_steps

NODES = ("n1", "n2")


def failed(after: float, category: str = "user_code", line: str = "ValueError: mine", code: int = 1) -> State:
    """Its first attempt ran for so many seconds."""
    at = 2.0 + after
    todo: list[ev.Event] = [
        ev.Started(0.0, 1),
        ev.Submitted(1.0, "submit", 7, released=True),
        ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
        ev.JobSeen(at, 7, 0, "FAILED", nodes=NODES, batch_host="n1", exit_code=code, exit_signal=0),
    ]
    state, until = State(request=Request(num_nodes=2)), at + 60.0
    while todo:
        state, actions = decide(state, todo.pop(0))
        for action in actions:
            at += 0.1
            if isinstance(action, ReadLogs):
                todo.append(ev.Examined(at, action.key, category, line, "slurm-7.log"))
            if isinstance(action, Probe):
                todo.append(ev.Probed(at, action.key, action.node, "PASS", "slurmd accepts connections"))
        if not todo and at < until and not state.phase.over:
            at += 5.0
            todo.append(ev.Tick(at))
    return state


def test_an_error_of_its_own_at_its_start_ends_the_run() -> None:
    state = failed(after=4.0)
    assert state.phase is Phase.FAILED and state.verdict.startswith("ValueError: mine (the job ended with exit code 1")


@pytest.mark.parametrize("code", [1, 2])
def test_hours_later_it_is_restarted(code: int) -> None:
    """It may have trained all that time."""
    state = failed(after=36_000.0, code=code)
    assert state.phase is Phase.RECOVERING and any(isinstance(action, Restart) for action in state.pending)


def test_an_error_that_is_none_of_its_own_is_restarted_at_any_time() -> None:
    state = failed(after=4.0, category="network_fabric", line="NCCL error")
    assert state.phase is Phase.RECOVERING
    assert state.incident is not None and state.incident.diagnosis is not None
    assert state.incident.diagnosis.words.endswith(": NCCL error")


def test_job_that_slurm_calls_only_completing_is_shown_as_ending() -> None:
    """Until Slurm says how it ended, the decisions are those for a job that runs."""
    state = State(request=Request(num_nodes=2))
    for event in (
        ev.Started(0.0, 1),
        ev.Submitted(1.0, "submit", 7, released=True),
        ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
        ev.JobSeen(9.0, 7, 0, "UNKNOWN", completing=True, nodes=NODES),
    ):
        assert not state.ends
        state, _ = decide(state, event)
    assert state.ends and state.phase is Phase.STARTING
    assert [step.message for step in next_steps(state, None, warned=False)] == [
        "the job has ended; waiting for Slurm to remove its processes"
    ]
    assert build_view("r", state, {}, 10.0, operator=True).phase == "finishing"
    done, _ = decide(state, ev.JobSeen(10.0, 7, 0, "COMPLETED", nodes=NODES, exit_code=0, exit_signal=0))
    assert done.phase is Phase.DONE
    again, _ = decide(state, ev.JobSeen(10.0, 7, 1, "PENDING"))
    assert again.phase is Phase.RECOVERING and not again.job.completing
    gone, _ = decide(state, ev.JobSeen(10.0, 7, 0, "UNKNOWN"))
    assert not gone.ends
