"""The life of an incident: examine, isolate, wait, restart, next step. Pure: from state to (state, actions).

A sign (an outcome, a silent node, a stall, the end of the job) opens an incident. Later signs join the open one, so a
fault with many symptoms stays one incident with one isolation and one restart.
"""

from dataclasses import replace

from transom_cli.core.clocks import first_bad
from transom_cli.core.diagnose import PREFLIGHT, RunFacts, diagnose, judged
from transom_cli.core.events import Isolated
from transom_cli.core.incident import SECOND_PROBE, Diagnosis, Incident, Sign, Stage
from transom_cli.core.operator import isolation
from transom_cli.core.operator.actions import Action, Cancel, Probe, ReadLogs, Restart
from transom_cli.core.operator.state import Exclusion, Phase, State, Step, both, order, withdraw_patches
from transom_cli.core.policy import IGNORE
from transom_cli.plural import times

HELD = 21
REQUESTED = "requested"  # the cause of a restart that a person asked for


def sign(state: State, seen: Sign) -> Step:
    """A sign of trouble in the present attempt: open an incident, or add it to the open one."""
    state = supersede(state, seen.at)
    incident = state.incident
    if incident is not None and incident.stage not in (Stage.EXAMINING, Stage.RELAUNCHING):
        return state, ()  # the attempt is being given up already
    incident = (incident or state.new_incident(seen.at, Stage.EXAMINING)).with_sign(seen)
    ordered = order(replace(state, incident=incident), *_questions(state, incident))
    return both(ordered, advance(ordered[0], seen.at))


def silence(state: State, seen: Sign) -> Step:
    """A node fell silent. While another node is being isolated, this one is probed too.

    More than one node may have died, and a restart that does not know about a dead node waits for it in vain.
    """
    incident = state.incident
    late = incident is not None and incident.stage in (Stage.ISOLATING, Stage.WAITING)
    if incident is not None and late and not {x.node for x in incident.probes}.issuperset(seen.suspects):
        state = replace(state, incident=replace(incident, stage=Stage.EXAMINING))
    return sign(state, seen)


def _questions(state: State, incident: Incident) -> list[Action]:
    ordered: list[Action] = []
    outcome = incident.outcome
    over = outcome is not None or bool(incident.ended)
    on_purpose = outcome is not None and outcome.status == "left"  # then no log explains it
    if over and not on_purpose and not _examined(state, incident):
        first = first_bad(outcome.exits) if outcome else None
        ordered.append(ReadLogs(f"{incident.id}/examine", incident.attempt, first.rank if first else None))
    probed = {probes.node for probes in incident.probes}
    nodes = dict.fromkeys(incident.silent_nodes)
    if outcome is not None:
        nodes.update(dict.fromkeys(outcome.missing))
    elif incident.ended or (incident.stalled and not incident.suspect_nodes):
        nodes.update(dict.fromkeys(state.job.nodes))  # no node stands out: probe them all
    asking = {a.node for a in state.pending if isinstance(a, Probe)}
    fresh = [n for n in nodes if n in state.job.nodes and n not in probed and n not in asking]
    return ordered + [Probe(f"{incident.id}/probe/{n}/1", n, _through(state, incident)) for n in fresh]


def _through(state: State, incident: Incident) -> int:
    """The job in which a probe may start a step; 0 once it has ended, since a step would only fail."""
    return 0 if incident.ended else state.job.id


def _examined(state: State, incident: Incident) -> bool:
    return bool(incident.log_category) or any(a.key == f"{incident.id}/examine" for a in state.pending)


def probed(state: State, at: float, key: str, node: str, verdict: str, evidence: str) -> Step:
    """Two failures in a row condemn a node. An unknown result in between starts the count again."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.EXAMINING:
        return state, ()
    incident = incident.with_probe(at, node, verdict, evidence)
    state = replace(state, incident=incident)
    if incident.probes_of(node).inconclusive(verdict):
        again = f"{incident.id}/probe/{node}/{int(key.rpartition('/')[2]) + 1}"
        return order(state, Probe(again, node, _through(state, incident), SECOND_PROBE))
    return advance(state, at)


def due_at(state: State) -> float | None:
    """When the incident enters its next stage, if nothing is pending for it."""
    incident = state.incident
    if incident is None or any(a.key.startswith(f"{incident.id}/") for a in state.pending):
        return None
    if incident.stage is Stage.WAITING:
        return incident.not_before or 0.0
    return incident.began if incident.stage in (Stage.EXAMINING, Stage.ISOLATING) else None


def advance(state: State, at: float) -> Step:
    """Enter the next stage once all questions are answered and the back-off is over."""
    incident, due = state.incident, due_at(state)
    if incident is None or due is None or at < due:
        return state, ()
    if incident.stage is Stage.EXAMINING:
        return _judge(state, incident, at)
    return _budget(state, incident, at) if incident.stage is Stage.ISOLATING else _restart(state, incident, at)


def _run_facts(state: State) -> RunFacts:
    job, progress = state.job, state.progress
    return RunFacts(
        nodes=job.nodes,
        carrying=len(job.nodes) - len(state.idle.nodes),
        fewest=state.request.fewest,
        wanted=state.request.num_nodes - state.request.spares,
        idle=state.idle.nodes,
        launched=state.launch.started,
        stopped=state.launch.stopped,
        step=progress.step,
        max_step=progress.max_step,
        durable=progress.durable,
        starts=job.starts,
        slurm_reason=job.reason,
        batch_host=job.batch_host,
        incidents=state.counting,
        taken=state.taken,
        rules=state.policy.rules,
    )


def _judge(state: State, incident: Incident, at: float) -> Step:
    run = _run_facts(state)
    diagnosis = judged(diagnose(incident, run), incident, run, at)
    if diagnosis is None and incident.launcher_number:
        incident = replace(incident, stage=Stage.RELAUNCHING).marked(at, "nothing", "every probed node answers")
        return replace(state, incident=incident), ()
    if diagnosis is None:
        unknown = [probes for probes in incident.probes if probes.open]
        words = f"{unknown[0].node} could not be probed: {unknown[0].evidence}" if unknown else "everything answers"
        result = "unproven" if unknown else "nothing"
        return close(state.mark(at, "nothing", f"{words}; no fault found"), at, result), ()
    if diagnosis != incident.diagnosis:
        incident = replace(incident, diagnosis=diagnosis).marked(at, "diagnosed", diagnosis.words)
        if diagnosis.decided.words and diagnosis.restart:  # a stop is part of the diagnosis' own words
            incident = incident.marked(at, "decided", diagnosis.decided.words)
    state = replace(state, incident=incident)
    if diagnosis.decided.action == IGNORE and incident.silence_only and not incident.launcher_number:
        return close(state, at, "ignored"), ()
    if not diagnosis.restart:
        return stop(state, at, diagnosis.words, diagnosis.exit_code)
    state = state.in_phase(Phase.RECOVERING, at)
    choice = isolation.choose(state, diagnosis, at)
    if choice.refused:
        return stop(state, at, choice.refused, HELD)
    if choice.capped:
        incident = incident.marked(at, "capped", choice.capped)
    state = replace(state, incident=replace(incident, stage=Stage.ISOLATING))
    ordered = order(state, *choice.orders(state, diagnosis, incident.id))
    state = isolation.count(ordered[0], at, len(choice.new))
    return both((state, ordered[1]), advance(state, at))


def isolated(state: State, e: Isolated) -> Step:
    incident, at, node, how, detail = state.incident, e.at, e.node, e.how, e.detail
    known = state.isolation.of(node)
    if incident is None or incident.diagnosis is None or (known is not None and known.until is None):
        return advance(state, at)
    diagnosis, faults = incident.diagnosis, incident.diagnosis.faults_of(node)
    until: float | None = None
    if not diagnosis.sure_of(node):
        until, detail = isolation.expiry(state, e, detail)
    words = faults[0].words if faults else diagnosis.words
    new = Exclusion(node, at, until, how, incident.id, words, diagnosis.cause, detail, faults)
    state = state.mark(at, "isolated", f"{node} {how}" + (f" ({detail})" if detail else ""))
    return advance(replace(state, isolation=state.isolation.excluding(new)), at)


def _budget(state: State, incident: Incident, at: float) -> Step:
    """Charge the restart to the budget. Progress, not time, refills it: see `core.progress`."""
    if incident.not_before is not None:  # charged already, before a second round of probes
        return advance(replace(state, incident=replace(incident, stage=Stage.WAITING)), at)
    progress, budget = state.progress, state.budget
    further = progress.further(incident.diagnosis.cause if incident.diagnosis else "")
    if further:
        budget = replace(budget, no_progress=0, spared=0)
    state = replace(state, progress=progress.charged())
    if _found_by_preflight(state, incident) and budget.spared < isolation.cap(state):
        incident = incident.marked(at, "spared", "the checks found it before any rank began: no restart is counted")
        state = replace(state, budget=replace(budget, spared=budget.spared + 1))
        return advance(replace(state, incident=replace(incident, stage=Stage.WAITING, not_before=at)), at)
    stuck = 0 if further else budget.no_progress + 1
    if stuck > state.policy.max_without_progress:
        return stop(state, at, _exhausted(state, incident, stuck), HELD)
    state = replace(state, budget=replace(budget, no_progress=stuck))
    delay = min(state.policy.backoff * 2.0 ** (stuck - 1), state.policy.backoff_cap) if stuck else 0.0
    incident = replace(incident, stage=Stage.WAITING, not_before=at + delay)
    if delay:
        incident = incident.marked(at, "waiting", f"{delay:g} s before restart {stuck} without progress")
    return advance(replace(state, incident=incident), at)


def _exhausted(state: State, incident: Incident, stuck: int) -> str:
    last = incident.diagnosis.words if incident.diagnosis else ""
    words = f"restarted {times(stuck - 1)} without progress{state.progress.beyond}; last: {last}"
    return words + isolation.or_the_checks(incident.diagnosis)


def _found_by_preflight(state: State, incident: Incident) -> bool:
    """Whether the restart follows an isolation by the preflight. The budget spares it, up to the cap in a row.

    Checks that find fault with ever more nodes are then charged to the budget, and it ends.
    """
    if incident.diagnosis is None or incident.diagnosis.cause != PREFLIGHT:
        return False
    return any(x.incident == incident.id and x.faults for x in state.isolation.exclusions)


def _restart(state: State, incident: Incident, at: float, *, key: str = "restart") -> Step:
    expired = state.isolation.expired(at)
    state = replace(state, isolation=state.isolation.without(expired))
    state, let_in = withdraw_patches(replace(state, incident=replace(incident, stage=Stage.RESTARTING)))
    action = Restart(
        f"{incident.id}/{key}",
        state.job.id,
        state.job.restarts,
        num_nodes=state.request.num_nodes or len(state.job.nodes),
        exclude=state.isolation.excluded,
        dead=tuple(dict.fromkeys((*incident.dead, *(x.node for x in state.idle.probes if x.dead)))),
        drop=tuple(dict.fromkeys((*let_in, *expired))),
    )
    return order(state, action)


def requeue_refused(state: State) -> str:
    """Return why a person's request to requeue changes nothing, "" if it does."""
    if state.incident is not None and state.incident.stage not in (Stage.RELAUNCHING, Stage.STARTING):
        diagnosis = state.incident.diagnosis
        if diagnosis is not None and diagnosis.planned:
            return f"refused: the job is being requeued already: {diagnosis.words}"
        return "refused: the operator is handling a failure and decides about a restart itself"
    if state.job.state != "RUNNING" or state.phase in (Phase.STOPPING, Phase.FINISHING):
        return f"refused: no job is running (the run is {state.phase.value})"
    return ""


def requeue(state: State, at: float, who: str) -> Step:
    """Requeue the job because a person asked for it. The budget does not count it."""
    if state.incident is not None and state.incident.stage is Stage.STARTING:
        state = close(state, at, "requeued")
    words = f"requeue requested by {who}"
    incident = (state.incident or state.new_incident(at, Stage.WAITING)).marked(at, "seen", words)
    diagnosis = Diagnosis(REQUESTED, words, (), True, "none", True)
    incident = replace(incident, stage=Stage.WAITING, diagnosis=diagnosis, not_before=at)
    pending = tuple(a for a in state.pending if not a.key.startswith(f"{incident.id}/"))
    return advance(replace(state, incident=incident, pending=pending).in_phase(Phase.RECOVERING, at), at)


def restart_refused(state: State, at: float, error: str) -> Step:
    """Slurm refuses the job without the excluded nodes: let the suspected ones in again, once; else stop."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.RESTARTING:
        return state, ()
    suspected = state.isolation.suspected
    if not suspected:
        why = f"Slurm refused the restart: {error}"
        return stop(replace(state, incident=replace(incident, ended="")), at, why, 1)  # held, maybe: to be cancelled
    incident = incident.marked(at, "refused", f"{error}; trying again with the suspected nodes")
    state = replace(state, isolation=state.isolation.expiring(suspected, at))
    return _restart(state, incident, at, key="restart/2")


def restarted(state: State, at: float, job_id: int, restarts: int, how: str) -> State:
    incident = state.incident
    if incident is not None:
        words = {"requeued": "job requeued", "already": "the job was requeued already"}.get(how, f"new job {job_id}")
        if state.isolation.excluded:
            words += f" without {', '.join(state.isolation.excluded)}"
        incident = replace(incident, stage=Stage.STARTING).marked(at, "requeued", words)
    return replace(state, incident=incident).in_phase(Phase.RECOVERING, at).in_attempt(job_id, restarts)


def suspended(state: State, at: float) -> State:
    """Slurm has stopped the job, so a silence was no sign of trouble. What has ended or failed stays as it is."""
    incident = state.incident
    silent = (Stage.EXAMINING, Stage.ISOLATING, Stage.WAITING)
    if incident is None or incident.stage not in silent or not incident.silence_only or incident.faults:
        return state
    state = state.mark(at, "suspended", "Slurm suspended the job: its silence is no evidence")
    if (
        incident.launcher_number and state.incident is not None
    ):  # its launcher handles it, and continues when the job does
        others = tuple(a for a in state.pending if not a.key.startswith(f"{incident.id}/"))
        return replace(state, incident=replace(state.incident, stage=Stage.RELAUNCHING, probes=()), pending=others)
    state = close(state, at, "suspended")
    if state.phase is not Phase.RECOVERING:
        return state
    return state.in_phase(Phase.TRAINING if state.progress.step >= 0 else Phase.STARTING, at)


def close(state: State, at: float, result: str) -> State:
    """Close the incident, and withdraw the actions that are pending for it."""
    incident = state.incident
    if incident is None:
        return state
    others = tuple(a for a in state.pending if not a.key.startswith(f"{incident.id}/"))
    incident = replace(incident, stage=Stage.CLOSED, result=result, ended_at=at)
    return replace(state, incident=None, incidents=(*state.incidents, incident), pending=others)


def supersede(state: State, at: float) -> State:
    """Close an incident whose restart has not come to a step before the next trouble. A planned end is no failure."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.STARTING:
        return state
    planned = incident.diagnosis is not None and incident.diagnosis.planned
    return close(state, at, "requeued" if planned else "failed again")


def forget(state: State) -> State:
    """Drop the open incident, which turned out to be the effect of something else; that takes its number."""
    incident = state.incident
    pending = tuple(a for a in state.pending if incident is None or not a.key.startswith(f"{incident.id}/"))
    return replace(state, incident=None, pending=pending)


def over(state: State, at: float, phase: Phase, verdict: str, exit_code: int) -> Step:
    result = "interrupted" if phase is Phase.STOPPED else phase.value  # a person has stopped the run
    state = close(state, at, result).in_phase(phase, at)
    return replace(state, verdict=verdict, exit_code=exit_code, pending=()), ()


def stop(state: State, at: float, why: str, exit_code: int) -> Step:
    """Stop the run, with the evidence. The job is cancelled unless it has ended; then the run is over."""
    ended = state.incident is not None and bool(state.incident.ended)
    state = close(state.mark(at, "stopped", why), at, "stopped")
    state = replace(state, verdict=why, exit_code=exit_code, since=at, pending=())
    if ended or not state.job.id:
        return replace(state, phase=final_phase(state)), ()
    return order(replace(state, phase=Phase.STOPPING), Cancel(f"cancel/{state.attempt}", state.job.id))


def final_phase(state: State) -> Phase:
    return Phase.STOPPED if state.stop_requested else Phase.FAILED
