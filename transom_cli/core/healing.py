"""Faults that the launcher handles inside the allocation, as the operator sees them. Pure.

The operator follows and stays out of it, until the launcher hands the attempt up with its outcome, or falls silent.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core import incident as inc
from transom_cli.core.state import Diagnosis, Incident, Phase, Stage, State


def told(state: State, at: float, what: str, words: str, cause: str, nodes: tuple[str, ...]) -> State:
    """The launcher's story of a fault that it handles itself. What the operator is at already, it only adds to."""
    incident = state.incident
    if what == "seen" and (incident is None or incident.stage is Stage.STARTING):
        state = inc.close(state, at, "failed again")
        name = f"i{len(state.incidents) + 1}"
        incident = Incident(name, state.job_id, state.restarts, at, state.step, Stage.HEALING, healing=True)
        state = replace(state, phase=Phase.RECOVERING, since=at)
    elif incident is None or incident.stage not in (Stage.HEALING, Stage.EXAMINING):
        return state
    elif what == "diagnosed" and incident.stage is Stage.HEALING:
        diagnosis = Diagnosis(cause, words, nodes, sure=False, isolate="none", restart=True)
        incident = replace(incident, diagnosis=diagnosis)
    return replace(state, incident=inc.mark(incident, at, what, words))


def relaunched(state: State, at: float, launch: int, words: str) -> State:
    """The training step was started again in the same attempt: an open fault is about the launch before it."""
    state = replace(state, launch=launch, step=-1)
    incident = state.incident
    if incident is None or incident.stage not in (Stage.HEALING, Stage.EXAMINING):
        return state
    if incident.stage is Stage.EXAMINING:  # a node is being looked at: the ranks' silence alone says nothing any more
        return replace(
            state, incident=inc.mark(replace(incident, quiet_over=True, healing=False), at, "launched", words)
        )
    return replace(state, incident=inc.mark(replace(incident, stage=Stage.STARTING), at, "launched", words))
