"""A run that is over continues, because a person asked for it: as the same run, in a new job. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Submit
from transom_cli.core.operator.state import Budget, Idle, Job, Launch, Phase, State, Step, order


def resumed(state: State, e: ev.Resumed) -> Step:
    """Submit another job. What the run knows of its training, nodes and incidents stays; its budgets begin again."""
    if not state.phase.over or state.phase is Phase.DONE or state.policy.observe:
        return state, ()
    request = replace(state.request, waived="", shrunk="")
    if e.num_nodes:
        request = replace(request, num_nodes=e.num_nodes, fewest=e.fewest)
    past = (*state.past_jobs, *((state.job.id,) if state.job.id else ()))
    state = replace(
        state.requested(e.at, "resume", e.who, result="the run continues in a new job"),
        request=request,
        job=Job(starts=state.job.starts + bool(state.job.id)),
        launch=Launch(),
        idle=Idle(),
        progress=state.progress.new_start().charged(),
        budget=Budget(),
        isolation=state.isolation.without(state.isolation.expired(e.at)),
        slurm_error="",
        saves_fail=None,
        stop_requested=False,
        submissions=(),
        pending=(),
        verdict="",
        exit_code=None,
        past_jobs=past,
        resumed_at=e.at,
    )
    number = 1 + sum(one.what == "resume" for one in state.requests)  # one may have been refused, and left no job
    return order(state.in_phase(Phase.SUBMITTING, e.at), Submit(f"submit/{number}"))
