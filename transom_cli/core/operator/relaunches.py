"""Faults that the launcher handles inside the allocation, as the operator sees them. Pure.

The operator stays out of such a fault until the launcher hands the attempt up with its outcome, or falls silent.
"""

from dataclasses import replace

from transom_cli.core.events import RecoverySeen
from transom_cli.core.incident import Diagnosis, Stage
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator import observing
from transom_cli.core.operator.state import Phase, State
from transom_cli.core.progress import newest_step

_AFTER = {
    "waiting": (Stage.STARTING,),
    "probation": (Stage.STARTING,),
}  # reports that come after the relaunch was requested


def reported(state: State, e: RecoverySeen) -> State:
    """The launcher reports a fault that it handles. If the operator handles the incident, it only adds the report.

    The launcher numbers its faults in each attempt: l1, l2, ...
    """
    number = _number(e.incident)
    if e.what == "seen":
        if number <= state.launch.newest_fault:
            return state  # an operator that takes over reads the launcher's journal from its beginning
        state = replace(state, launch=replace(state.launch, newest_fault=number))
    incident = state.incident
    if incident is not None and number == incident.launcher_number and e.what in ("withheld", "recovered"):
        state = observing.reported(state, e)
        if e.what == "withheld" or incident.stage is Stage.WITHHELD:
            return state
    if e.what == "seen" and (incident is None or incident.stage is Stage.STARTING):
        state = inc.supersede(state, e.at).in_phase(Phase.RECOVERING, e.at)
        incident = state.new_incident(e.at, Stage.RELAUNCHING, number)
    elif incident is None or incident.stage not in (Stage.RELAUNCHING, Stage.EXAMINING, *_AFTER.get(e.what, ())):
        return state
    elif e.what == "seen":
        incident = replace(incident, launcher_number=number)
    elif number != incident.launcher_number or any((m.what, m.words) == (e.what, e.words) for m in incident.marks):
        return state
    if e.what == "diagnosed" and incident.stage is Stage.RELAUNCHING:
        diagnosis = Diagnosis(e.cause, e.words, e.nodes, sure=False, isolate="none", restart=True)
        diagnosis = replace(diagnosis, decided=e.decided, end=e.end)
        known = (incident.step, incident.since_start), (e.step, e.since_start)
        step, since_start = newest_step(*known)  # heartbeats may lag behind
        incident = replace(incident, diagnosis=diagnosis, step=step, since_start=since_start)
    return replace(state, incident=incident.marked(e.at, e.what, e.words).with_faults(e.at, e.faults))


def relaunched(state: State, at: float, number: int, words: str) -> State:
    """The launcher started launch `number` in the same attempt. An open fault is about the launch before it."""
    state = replace(
        state,
        launch=replace(state.launch, number=number, leaving=None, late="", older=""),
        progress=state.progress.new_launch(),
    )
    state = state.mark(at, "launched", words)
    incident = state.incident
    if incident is None:
        return state
    if incident.stage in (Stage.ISOLATING, Stage.WAITING) and incident.silence_only:
        return inc.close(state, at, "nothing").in_phase(Phase.RECOVERING, at)  # the silence is over
    if incident.stage is Stage.EXAMINING:  # a node is being probed: the ranks' silence is no evidence any more
        return replace(state, incident=replace(incident, stall_over=True, launcher_number=0))
    if incident.stage is not Stage.RELAUNCHING:
        return state
    return replace(state, incident=replace(incident, stage=Stage.STARTING))


def _number(name: str) -> int:
    """Return the number of a launcher's incident, or 0 for any other name."""
    return int(name[1:]) if name[:1] == "l" and name[1:].isdecimal() else 0
