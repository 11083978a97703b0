"""Faults that the launcher handles inside the allocation, as the operator sees them. Pure.

The operator follows and stays out of it, until the launcher hands the attempt up with its outcome, or falls silent.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.events import HealSeen
from transom_cli.core.incident import Diagnosis, Incident, Stage
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator.state import Phase, State

_AFTER = {"waiting": (Stage.STARTING,)}  # what is told of a launch that has been asked for


def told(state: State, e: HealSeen) -> State:
    """The launcher's story of a fault that it handles itself. What the operator is at already, it only adds to.

    Its name for it is l1, l2, ... in each attempt.
    """
    at, what, words = e.at, e.what, e.words
    number = _number(e.incident)
    if what == "seen":
        if number <= state.healed:
            return state  # an operator that takes over reads the launcher's journal from its beginning
        state = replace(state, healed=number)
    incident = state.incident
    if what == "seen" and (incident is None or incident.stage is Stage.STARTING):
        state = inc.close(state, at, "failed again")
        own = f"i{len(state.incidents) + 1}"
        incident = Incident(own, state.job_id, state.restarts, at, state.step, Stage.HEALING, healing=number)
        incident = replace(incident, since_start=state.since_start)
        state = replace(state, phase=Phase.RECOVERING, since=at)
    elif incident is None or incident.stage not in (Stage.HEALING, Stage.EXAMINING, *_AFTER.get(what, ())):
        return state
    elif what == "seen":
        incident = replace(incident, healing=number)
    elif number != incident.healing or any((m.what, m.words) == (what, words) for m in incident.marks):
        return state
    if what == "diagnosed" and incident.stage is Stage.HEALING:
        diagnosis = Diagnosis(e.cause, words, e.nodes, sure=False, isolate="none", restart=True, decided=e.decided)
        incident = replace(incident, diagnosis=diagnosis)
    return replace(state, incident=inc.found(inc.mark(incident, at, what, words), at, e.faults))


def relaunched(state: State, at: float, launch: int, words: str) -> State:
    """The training step was started again in the same attempt: an open fault is about the launch before it."""
    state = replace(state, launch=launch, step=-1)
    incident = state.incident
    if incident is None:
        return state
    incident = inc.mark(incident, at, "launched", words)
    if incident.stage in (Stage.ISOLATING, Stage.WAITING) and not (incident.outcome or incident.ended or incident.dead):
        state = inc.close(replace(state, incident=incident), at, "nothing")  # on a silence alone: it is over
        return replace(state, phase=Phase.RECOVERING, since=at)
    if incident.stage is Stage.EXAMINING:  # a node is being looked at: the ranks' silence alone says nothing any more
        return replace(state, incident=replace(incident, quiet_over=True, healing=0))
    if incident.stage is not Stage.HEALING:
        return state
    return replace(state, incident=replace(incident, stage=Stage.STARTING))


def _number(name: str) -> int:
    """Of a launcher's incident; 0 for what is none."""
    return int(name[1:]) if name[:1] == "l" and name[1:].isdecimal() else 0
