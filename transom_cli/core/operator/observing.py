"""A run that is only observed: its decisions are recorded, and what happens to it instead is followed. Pure.

The core decides as in any run. The executor answers an action that would change a job or a node with `Withheld`. The
incident then stays open, so that nothing is decided about it twice, until the run itself changes: the ranks step again,
silent nodes are back, or the job ends or is requeued. Exclusions are never in force.
"""

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.incident import Stage
from transom_cli.core.operator import idle
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator.actions import Action, Cancel, Isolate, Patch, Release, Restart
from transom_cli.core.operator.state import Phase, State, Step, WouldHave, answered


def withheld(state: State, e: ev.Withheld) -> Step:
    action = next((a for a in state.pending if a.key == e.key), None)
    if not isinstance(action, (Isolate, Restart, Patch, Release, Cancel)):
        return state, ()
    state = answered(state, e.key)
    if isinstance(action, Isolate):
        what, did = ("drain", "drained") if action.drain else ("exclude", "excluded")
        state = _note(state, e.at, action, what, f"{did} {action.node}: {action.reason}", (action.node,))
        return (state, ()) if e.key.startswith(idle.PREFIX) else inc.advance(state, e.at)
    if isinstance(action, Restart):
        return _restart(state, e.at, action)
    if isinstance(action, Cancel):
        return _cancel(state, e.at, action)
    if isinstance(action, Release):
        return _note(state, e.at, action, "release", "released the held job"), ()
    excluded = state.isolation.excluded
    parts = [f"without {', '.join(action.exclude)}" if action.exclude else "", "at once" * action.start]
    words = f"let the pending job start {' and '.join(p for p in parts if p) or 'on fewer nodes'}"
    state = _note(state, e.at, action, "update", words, action.exclude)
    return replace(state, isolation=state.isolation.without(excluded)), ()


def _note(state: State, at: float, action: Action, what: str, words: str, nodes: tuple[str, ...] = ()) -> State:
    if any(one.key == action.key for one in state.withheld):
        return state
    new = WouldHave(at, action.key, what, words, nodes, state.attempt)
    return replace(state, withheld=(*state.withheld, new)).mark(at, "withheld", f"would have {words}")


def _restart(state: State, at: float, action: Restart) -> Step:
    incident = state.incident
    if incident is None:
        return state, ()
    parts = (one.nodes for one in state.withheld if one.incident == incident.id and one.what in ("drain", "exclude"))
    without = tuple(dict.fromkeys(node for nodes in parts for node in nodes))
    words = "requeued the job" + (f" without {', '.join(without)}" if without else "")
    state = _note(state, at, action, "requeue", words, without)
    return _follow(state, at, words)


def _cancel(state: State, at: float, action: Cancel) -> Step:
    if state.phase is Phase.FINISHING:  # the training is done, and Slurm has not noticed
        return inc.over(_note(state, at, action, "cancel", "cancelled the job"), at, Phase.DONE, "", 0)
    if state.stop_requested:
        which = f"job {action.job_id}" if action.job_id else "a job that was submitted"
        return inc.over(state, at, Phase.STOPPED, f"{state.verdict}: {which} was only observed, and lives on", 130)
    why, last = state.verdict, state.incidents[-1] if state.incidents else None
    state = replace(state, verdict="", exit_code=None)
    if last is not None and last.result == "stopped":  # its stop was not carried out: it is open again
        last = replace(last, stage=Stage.WITHHELD, result="", ended_at=None)
        state = replace(state, incident=last, incidents=state.incidents[:-1])
    return _follow(_note(state, at, action, "cancel", f"cancelled the job: {why}"), at, "cancelled the job")


def _follow(state: State, at: float, words: str) -> Step:
    """Return to the state that the job is in, with the incident open."""
    if state.incident is None:
        return state.in_phase(_phase(state), at), ()
    state = replace(state, incident=replace(state.incident, stage=Stage.WITHHELD))
    ended = state.incident.ended if state.incident is not None else ""
    return job_ended(state, at, ended, words) if ended else (state.in_phase(_phase(state), at), ())


def _phase(state: State) -> Phase:
    if state.job.state == "PENDING":
        return Phase.PENDING
    return Phase.TRAINING if state.progress.step >= 0 else Phase.STARTING


def job_ended(state: State, at: float, how: str, words: str = "") -> Step:
    """The job has ended, and a person may requeue it as long as Slurm knows it."""
    if state.phase is Phase.HELD and how != "GONE":
        return state, ()  # known already
    last = words or next((one.words for one in reversed(state.withheld)), "")
    verdict = f"the job ended: {how}; transom would have {last}" if last else f"the job ended: {how}"
    if how == "GONE":
        return inc.over(state, at, Phase.FAILED, f"Slurm has forgotten the job; transom would have {last}", 1)
    if state.incident is not None and not state.incident.ended:
        incident = replace(state.incident, ended=how).marked(at, "seen", f"the job ended: {how}")
        state = replace(state, incident=incident)
    return replace(state.in_phase(Phase.HELD, at), verdict=verdict), ()


def reported(state: State, e: ev.RecoverySeen) -> State:
    """The launcher says what it would have done; the operator decides nothing more about this fault. Or it recovers."""
    incident = state.incident
    if incident is None:
        return state
    if e.what == "recovered":
        return recovered(state, e.at, e.words) if state.withholding else state
    if incident.stage not in (Stage.RELAUNCHING, Stage.EXAMINING):
        return state  # EXAMINING: a node is being probed, whose answer would decide about a launch that lives on
    state = _note(state, e.at, Action(f"{incident.id}/launcher"), "relaunch", e.words, e.nodes)
    return _follow(state, e.at, e.words)[0]


def recovered(state: State, at: float, what: str) -> State:
    """The run recovers by itself."""
    return inc.close(state.mark(at, "seen", what), at, "recovered").in_phase(Phase.TRAINING, at)


def stepped(state: State, at: float, step: int) -> State:
    """A node that is silent while the ranks step stays silent; the launcher itself reports what it handles."""
    incident = state.incident
    if incident is None or not state.withholding or incident.launcher_number:
        return state
    if incident.lost_rank or not (incident.stalled or incident.outcome):
        return state
    return recovered(state, at, f"step {step} done, without an action")


def node_back(state: State, e: ev.NodeBack) -> Step:
    incident = state.incident
    if incident is None or not state.withholding or e.attempt != state.attempt:
        return state, ()
    if e.node not in incident.silent_nodes or not incident.silence_only or incident.stalled:
        return state, ()
    return recovered(state, e.at, f"{e.node} reports again, without an action"), ()


def by_hand(state: State, e: ev.JobSeen) -> bool:
    """Whether a person, rather than Slurm, requeued the job: it had ended, or none of its nodes is down."""
    if not state.withholding or state.incident is None:
        return False
    return bool(state.incident.ended) or not (e.lost_nodes or e.by_launcher or e.succeeds)
