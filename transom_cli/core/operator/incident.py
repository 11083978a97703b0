"""The life of an incident: examine, isolate, wait, restart, first new step. Pure: from state to (state, actions).

An incident is opened by a sign (an outcome, a silent node, quiet ranks, a job that ended). Later signs are merged into
the open one, so that a fault with many voices stays one incident with one isolation and one restart.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.diagnose import PREFLIGHT, diagnose, first_bad
from transom_cli.core.events import NodeFault
from transom_cli.core.incident import Incident, Look, Mark, Stage
from transom_cli.core.judging import judged
from transom_cli.core.operator import isolation
from transom_cli.core.operator.actions import Action, Cancel, Examine, Probe, Restart
from transom_cli.core.operator.asking import Step, both, order, withdraw_patches
from transom_cli.core.operator.looks import SECOND_LOOK, look_again, looked
from transom_cli.core.operator.state import Exclusion, Phase, State
from transom_cli.core.policy import IGNORE
from transom_cli.core.progress import made_progress
from transom_cli.plural import several, times

HELD = 21


def mark(incident: Incident, at: float, what: str, words: str) -> Incident:
    return replace(incident, marks=(*incident.marks, Mark(at, what, words)))


def found(incident: Incident, at: float, faults: tuple[NodeFault, ...]) -> Incident:
    """What checks found against nodes becomes part of the story, each fault once."""
    new = tuple(f for f in dict.fromkeys(faults) if f not in incident.faults)
    for fault in new:
        remedy = f"; remedy: {fault.remedy}" if fault.remedy != "none" else ""
        incident = mark(incident, at, "found", f"{fault.node}: {fault.verdict.lower()}, {fault.words}{remedy}")
    return replace(incident, faults=(*incident.faults, *new)) if new else incident


def sign(state: State, at: float, words: str, faults: tuple[NodeFault, ...] = (), **about: object) -> Step:
    """A sign of trouble in the present attempt: open an incident, or add it to the open one."""
    incident = state.incident
    if incident is not None and incident.stage is Stage.STARTING:
        state = close(state, at, "failed again")
        incident = None
    if incident is not None and incident.stage not in (Stage.EXAMINING, Stage.HEALING):
        return state, ()  # the attempt is being given up already
    if incident is None:
        name = f"i{len(state.incidents) + 1}"
        ran = at - state.running if state.running is not None else 0.0
        incident = Incident(name, state.job_id, state.restarts, at, state.step, ran=ran, since_start=state.since_start)
    incident = mark(replace(incident, stage=Stage.EXAMINING, **about), at, "seen", words)  # type: ignore[arg-type]
    state = replace(state, incident=found(incident, at, faults))
    incident = state.incident
    assert incident is not None
    asked = order(state, *_questions(state, incident))
    return both(asked, advance(asked[0], at))


def silence(state: State, at: float, words: str, quiet_nodes: tuple[str, ...]) -> Step:
    """A node fell silent. While another one is being isolated, this one is looked at too: a node may not be the only
    one that died, and a restart that does not know of a dead node waits for it in vain."""
    incident = state.incident
    late = incident is not None and incident.stage in (Stage.ISOLATING, Stage.WAITING)
    if incident is not None and late and not {x.node for x in incident.looks}.issuperset(quiet_nodes):
        state = replace(state, incident=replace(incident, stage=Stage.EXAMINING))
    return sign(state, at, words, quiet_nodes=quiet_nodes)


def _questions(state: State, incident: Incident) -> list[Action]:
    asked: list[Action] = []
    over = incident.outcome is not None or bool(incident.ended)
    left = incident.outcome is not None and incident.outcome.status == "left"  # on purpose: no log tells why
    if over and not left and not _examined(state, incident):
        first = first_bad(incident.outcome.exits) if incident.outcome else None
        asked.append(Examine(f"{incident.id}/examine", incident.attempt, first.rank if first else None))
    seen = {look.node for look in incident.looks}
    nodes = dict.fromkeys((*incident.quiet_nodes, *incident.overdue_nodes))
    if incident.outcome is not None:
        nodes.update(dict.fromkeys(incident.outcome.missing))
    elif incident.ended or (incident.quiet and not incident.quiet_nodes):
        nodes.update(dict.fromkeys(state.nodes))  # nobody stands out: ask them all
    asking = {a.node for a in state.pending if isinstance(a, Probe)}
    fresh = [n for n in nodes if n in state.nodes and n not in seen and n not in asking]
    return asked + [Probe(f"{incident.id}/probe/{n}/1", n, _through(state, incident)) for n in fresh]


def _through(state: State, incident: Incident) -> int:
    """The job in which a probe may start a step; 0 once it has ended, since a step would only fail."""
    return 0 if incident.ended else state.job_id


def _examined(state: State, incident: Incident) -> bool:
    return bool(incident.log_category) or any(a.key == f"{incident.id}/examine" for a in state.pending)


def probed(state: State, at: float, key: str, node: str, verdict: str, evidence: str) -> Step:
    """Two failures in a row condemn a node; an answer that tells nothing breaks the row, and is asked for again."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.EXAMINING:
        return state, ()
    look = looked(next((x for x in incident.looks if x.node == node), Look(node)), verdict, evidence)
    looks = (*(x for x in incident.looks if x.node != node), look)
    incident = mark(replace(incident, looks=looks), at, "probed", f"{node}: {verdict.lower()}, {evidence}")
    state = replace(state, incident=incident)
    look_number = int(key.rpartition("/")[2])
    if look_again(look, verdict):
        asked = f"{incident.id}/probe/{node}/{look_number + 1}"
        return order(state, Probe(asked, node, _through(state, incident), SECOND_LOOK))
    return advance(state, at)


def advance(state: State, at: float) -> Step:
    """Go to the next stage when everything that was asked has been answered."""
    incident = state.incident
    if incident is None or any(a.key.startswith(f"{incident.id}/") for a in state.pending):
        return state, ()
    if incident.stage is Stage.EXAMINING:
        return _judge(state, incident, at)
    if incident.stage is Stage.ISOLATING:
        return _budget(state, incident, at)
    if incident.stage is Stage.WAITING and at >= (incident.not_before or 0.0):
        return _restart(state, incident, at)
    return state, ()


def _judge(state: State, incident: Incident, at: float) -> Step:
    diagnosis = judged(diagnose(incident, state), incident, state, at)
    if diagnosis is None and incident.healing:
        incident = mark(replace(incident, stage=Stage.HEALING), at, "nothing", "every node that was asked answers")
        return replace(state, incident=incident), ()
    if diagnosis is None:
        unknown = [look for look in incident.looks if look.open]
        words = f"{unknown[0].node} could not be asked: {unknown[0].evidence}" if unknown else "everything answers"
        state = replace(state, incident=mark(incident, at, "nothing", f"{words}; no fault found"))
        return close(state, at, "nothing"), ()
    if diagnosis != incident.diagnosis:
        incident = mark(replace(incident, diagnosis=diagnosis), at, "diagnosed", diagnosis.words)
        if diagnosis.decided.words and diagnosis.restart:  # of a stop the diagnosis itself tells
            incident = mark(incident, at, "decided", diagnosis.decided.words)
    state = replace(state, incident=incident)
    if diagnosis.decided.action == IGNORE and _lives(incident):
        return close(state, at, "ignored"), ()
    if not diagnosis.restart:
        return stop(state, at, diagnosis.words, diagnosis.exit_code)
    state = replace(state, phase=Phase.RECOVERING, since=at)
    choice = isolation.choose(state, diagnosis, at)
    if choice.refused:
        return stop(state, at, choice.refused, HELD)
    if choice.capped:
        incident = mark(incident, at, "capped", choice.capped)
    state = replace(state, incident=replace(incident, stage=Stage.ISOLATING))
    asked = order(state, *choice.orders(state, diagnosis, incident.id))
    state = isolation.count(asked[0], at, len(choice.new))
    return both((state, asked[1]), advance(state, at))


def _lives(incident: Incident) -> bool:
    """Whether the training may well go on: nothing of it has ended, and its launcher is not at it."""
    return not (incident.outcome or incident.ended or incident.dead or incident.healing)


def isolated(state: State, at: float, node: str, how: str, detail: str) -> Step:
    incident = state.incident
    known = next((x for x in state.exclusions if x.node == node), None)
    if incident is None or incident.diagnosis is None or (known is not None and known.until is None):
        return advance(state, at)
    diagnosis, faults = incident.diagnosis, incident.diagnosis.faults_of(node)
    until = None if diagnosis.sure_of(node) else at + state.policy.expiry
    words = faults[0].words if faults else diagnosis.words
    new = Exclusion(node, at, until, how, incident.id, words, diagnosis.cause, detail, faults)
    others = tuple(x for x in state.exclusions if x.node != node)
    incident = mark(incident, at, "isolated", f"{node} {how}" + (f" ({detail})" if detail else ""))
    return advance(replace(state, exclusions=(*others, new), incident=incident), at)


def _budget(state: State, incident: Incident, at: float) -> Step:
    """Progress, not time, refills the budget: a newer durable step, or (without checkpoints) a newer step.

    Steps that count from the start of the processes are judged as `core.progress` says.
    """
    if incident.not_before is not None:  # paid already, before a second look
        return advance(replace(state, incident=replace(incident, stage=Stage.WAITING)), at)
    counted = state.since_start and state.durable < 0
    progress = state.progress if counted else state.durable if state.durable >= 0 else state.max_step
    further = made_progress(state.made, state.made_before) if counted else progress > state.progress
    further = further or _as_far_as_time_went(state, incident)
    made_before = state.made if state.made >= 0 else state.made_before
    spared = 0 if further else state.spared
    if _preflight_paid(state, incident) and spared < isolation.cap(state):
        incident = mark(incident, at, "spared", "the checks found it before any rank began: no restart is counted")
        stuck = 0 if further else state.no_progress
        state = replace(state, progress=max(progress, state.progress), no_progress=stuck, spared=spared + 1)
        state = replace(state, made_before=made_before)
        return advance(replace(state, incident=replace(incident, stage=Stage.WAITING, not_before=at)), at)
    stuck = 0 if further else state.no_progress + 1
    state = replace(state, progress=max(progress, state.progress), no_progress=stuck, spared=spared)
    state = replace(state, made_before=made_before)
    if stuck > state.policy.max_without_progress:
        last = incident.diagnosis.words if incident.diagnosis else ""
        beyond = f" beyond step {progress}" if progress >= 0 else ""
        if counted and state.made >= 0:
            beyond = f" ({several(state.made, 'step')} in the last start)"
        words = f"restarted {times(stuck - 1)} without progress{beyond}; last: {last}"
        words += isolation.or_the_checks(incident.diagnosis)
        return stop(state, at, words, HELD)
    delay = min(state.policy.backoff * 2.0 ** (stuck - 1), state.policy.backoff_cap) if stuck else 0.0
    incident = replace(incident, stage=Stage.WAITING, not_before=at + delay)
    if delay:
        incident = mark(incident, at, "waiting", f"{delay:g} s before restart {stuck} without progress")
    return advance(replace(state, incident=incident), at)


def _preflight_paid(state: State, incident: Incident) -> bool:
    """Such a restart is paid for with an isolation of its own, of which there are no more than the cap in a row:
    checks that find fault with ever new nodes come to the budget, and to its end."""
    if incident.diagnosis is None or incident.diagnosis.cause != PREFLIGHT:
        return False
    return any(x.incident == incident.id and x.faults for x in state.exclusions)


def _as_far_as_time_went(state: State, incident: Incident) -> bool:
    """Without checkpoints of ours a trainer may count its steps from its own start, and keep its state by itself: then
    no number tells that a new attempt came further. One that stepped until Slurm wanted its nodes back did.
    """
    cause = incident.diagnosis.cause if incident.diagnosis else ""
    idle = state.step < 0 <= state.max_step
    return state.durable < 0 and cause in ("time_limit", "preempted", "maintenance") and not idle


def _restart(state: State, incident: Incident, at: float, *, key: str = "restart") -> Step:
    gone = tuple(x.node for x in state.exclusions if x.until is not None and x.until <= at)
    state = replace(state, exclusions=tuple(x for x in state.exclusions if x.node not in gone))
    state, let_in = withdraw_patches(replace(state, incident=replace(incident, stage=Stage.RESTARTING)))
    action = Restart(
        f"{incident.id}/{key}",
        state.job_id,
        state.restarts,
        num_nodes=state.num_nodes or len(state.nodes),
        exclude=state.excluded,
        dead=tuple(dict.fromkeys((*incident.dead, *(x.node for x in state.idle_looks if x.dead)))),
        drop=tuple(dict.fromkeys((*let_in, *gone))),
    )
    return order(state, action)


def restart_refused(state: State, at: float, error: str) -> Step:
    """Slurm will not have the job without the excluded nodes: give up the merely suspected ones, once; else stop."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.RESTARTING:
        return state, ()
    suspected = tuple(x for x in state.exclusions if x.until is not None)
    if not suspected:
        why = f"Slurm refused the restart: {error}"
        return stop(replace(state, incident=replace(incident, ended="")), at, why, 1)  # held, maybe: to be cancelled
    expired = tuple(replace(x, until=at) if x in suspected else x for x in state.exclusions)
    incident = mark(incident, at, "refused", f"{error}; trying again with the suspected nodes")
    return _restart(replace(state, exclusions=expired), incident, at, key="restart/2")


def restarted(state: State, at: float, job_id: int, restarts: int, how: str) -> State:
    incident = state.incident
    if incident is not None:
        words = {"requeued": "job requeued", "already": "the job was requeued already"}.get(how, f"new job {job_id}")
        if state.excluded:
            words += f" without {', '.join(state.excluded)}"
        incident = mark(replace(incident, stage=Stage.STARTING), at, "requeued", words)
    state = replace(state, incident=incident, phase=Phase.RECOVERING, since=at)
    return new_attempt(state, job_id, restarts)


def new_attempt(state: State, job_id: int, restarts: int) -> State:
    fresh = (job_id, restarts) != (state.job_id, state.restarts)
    return replace(
        state,
        job_id=job_id,
        restarts=restarts,
        starts=state.starts + (1 if fresh else 0),
        running=None if fresh else state.running,
        launched=False if fresh else state.launched,
        launch=0 if fresh else state.launch,
        healed=0 if fresh else state.healed,
        step=-1 if fresh else state.step,
        made=-1 if fresh else state.made,
        idle=() if fresh else state.idle,
        idle_looks=() if fresh else state.idle_looks,
        idle_faults=() if fresh else state.idle_faults,
        slurm_state="PENDING" if fresh else state.slurm_state,
    )


def suspended(state: State, at: float) -> State:
    """Slurm has stopped the job, so a silence was no sign of trouble. What has ended or failed stays as it is."""
    incident = state.incident
    silent = (Stage.EXAMINING, Stage.ISOLATING, Stage.WAITING)
    if incident is None or incident.stage not in silent or not incident.silence_only or incident.faults:
        return state
    incident = mark(incident, at, "suspended", "Slurm suspended the job: its silence is no evidence")
    if incident.healing:  # its launcher handles it, and continues when the job does
        left = tuple(a for a in state.pending if not a.key.startswith(f"{incident.id}/"))
        return replace(state, incident=replace(incident, stage=Stage.HEALING, looks=()), pending=left)
    state = close(replace(state, incident=incident), at, "suspended")
    if state.phase is not Phase.RECOVERING:
        return state
    return replace(state, phase=Phase.TRAINING if state.step >= 0 else Phase.STARTING, since=at)


def close(state: State, at: float, result: str) -> State:
    """The incident is over; what was still asked for on its behalf is no longer wanted."""
    incident = state.incident
    if incident is None:
        return state
    left = tuple(a for a in state.pending if not a.key.startswith(f"{incident.id}/"))
    incident = replace(incident, stage=Stage.CLOSED, result=result, ended_at=at)
    return replace(state, incident=None, incidents=(*state.incidents, incident), pending=left)


def stop(state: State, at: float, why: str, exit_code: int) -> Step:
    """Stop for good, with the evidence. The job is cancelled unless it has ended; then the run is over."""
    ended = state.incident is not None and bool(state.incident.ended)
    if state.incident is not None:
        state = replace(state, incident=mark(state.incident, at, "stopped", why))
    state = close(state, at, "stopped")
    state = replace(state, verdict=why, exit_code=exit_code, since=at, pending=())
    if ended or not state.job_id:
        return replace(state, phase=final_phase(state)), ()
    return order(replace(state, phase=Phase.STOPPING), Cancel(f"cancel/{state.attempt}", state.job_id))


def final_phase(state: State) -> Phase:
    return Phase.STOPPED if state.stop_asked else Phase.FAILED
