"""The operator's core: `decide(state, event) -> (state, actions)`.

Total and calm: any event in any state is answered; a late or doubled one changes nothing. No clock, no file, no
environment. An event type that nobody handles is a TypeError at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core import incident as inc
from transom_cli.core.actions import Cancel, Patch, Release, Submit
from transom_cli.core.incident import Step, both, done, order
from transom_cli.core.state import Exclusion, Incident, Phase, Stage, State
from transom_cli.layout import parse_attempt

# Slurm's words for a pending job that can never start with these exclusions.
_IMPOSSIBLE = ("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit", "Requested node configuration")


def decide(state: State, event: ev.Event) -> Step:
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise TypeError(f"no handler for {type(event).__name__}")
    if state.phase.over and not isinstance(event, ev.Started):
        return state, ()
    return handler(state, event)


def _started(state: State, e: ev.Started) -> Step:
    state = replace(state, epoch=e.epoch)
    if state.phase.over:
        return state, ()
    if not state.job_id and not state.pending:
        return order(replace(state, since=e.at), Submit("submit"))
    return state, state.pending  # whatever was asked and not answered is asked again: each action is safe to do twice


def _tick(state: State, e: ev.Tick) -> Step:
    step = inc.advance(state, e.at)
    if step[1] or step[0] != state:
        return step
    expired = tuple(x.node for x in state.exclusions if x.until is not None and x.until <= e.at)
    if expired and state.slurm_state == "PENDING" and state.incident is None:
        return _patch(state, drop=expired)
    return state, ()


def _patch(state: State, *, add: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> Step:
    keep = tuple(x for x in state.exclusions if x.node not in drop)
    state = replace(state, exclusions=keep, patches=state.patches + 1)
    exclude = tuple(dict.fromkeys((*state.excluded, *add)))
    return order(state, Patch(f"patch/{state.patches}", state.job_id, exclude, drop))


def _submitted(state: State, e: ev.Submitted) -> Step:
    state = done(state, e.key)
    if state.job_id:
        return state, ()
    state = replace(state, job_id=e.job_id, slurm_state="PENDING", phase=Phase.PENDING, since=e.at)
    return order(state, Cancel(f"cancel/{e.job_id}", e.job_id)) if state.stop_asked else (state, ())


def _job_seen(state: State, e: ev.JobSeen) -> Step:
    if e.job_id != state.job_id or e.restarts < state.restarts or e.state == "UNKNOWN":
        return state, ()
    if e.restarts > state.restarts:
        if _restarting(state):
            return state, ()  # the restart we asked for is under way; its own answer says so
        return _requeued_behind(state, e)
    before = state.slurm_state
    state = replace(state, slurm_state=e.state, slurm_reason=e.reason, nodes=e.nodes or state.nodes)
    state = replace(state, batch_host=e.batch_host or state.batch_host)
    if _restarting(state):
        return state, ()
    if e.ended:
        return _job_ended(state, e)
    if e.state == "PENDING":
        return _job_pending(state, e)
    if e.state == "RUNNING":
        if before != "RUNNING" and state.incident is not None and state.incident.stage is Stage.STARTING:
            incident = inc.mark(state.incident, e.at, "running", f"job runs on {len(e.nodes)} nodes")
            state = replace(state, incident=incident)
        if state.phase in (Phase.PENDING, Phase.HELD, Phase.SUBMITTING):
            waiting = Phase.RECOVERING if state.incident else Phase.STARTING
            state = replace(state, phase=Phase.TRAINING if state.step >= 0 else waiting, since=e.at, verdict="")
    return state, ()


def _restarting(state: State) -> bool:
    return state.incident is not None and state.incident.stage is Stage.RESTARTING


def _job_pending(state: State, e: ev.JobSeen) -> Step:
    if e.held and state.phase is not Phase.STOPPING:
        verdict = f"Slurm holds the job: {e.reason or 'held'}"
        if state.phase is Phase.HELD and state.verdict == verdict:
            return state, ()
        state = replace(state, phase=Phase.HELD, since=e.at, verdict=verdict)
        words = e.reason.lower().replace("_", " ")
        by_slurm = "launch failed" in words or "maxrequeue" in words or "max requeue" in words
        if state.policy.release_held and by_slurm:
            return order(state, Release(f"release/{state.attempt}", state.job_id))
        return state, ()
    if state.phase in (Phase.STARTING, Phase.TRAINING, Phase.HELD):
        state = replace(state, phase=Phase.PENDING, since=e.at, verdict="")
    suspected = tuple(x.node for x in state.exclusions if x.until is not None)
    if suspected and e.reason.startswith(_IMPOSSIBLE):
        return _patch(state, drop=suspected)
    return state, ()


def _requeued_behind(state: State, e: ev.JobSeen) -> Step:
    """Slurm (a node failure, preemption, an admin) requeued the job itself: keep it off the nodes we know to be bad."""
    known = state.incident.dead + state.incident.quiet_nodes if state.incident else ()
    if state.incident is not None:
        state = replace(state, incident=inc.mark(state.incident, e.at, "requeued", "by Slurm, not by transom"))
        state = inc.close(state, e.at, "requeued by Slurm")
    name = f"i{len(state.incidents) + 1}"
    words = f"Slurm requeued the job behind our back (restart {e.restarts}{', ' + e.reason if e.reason else ''})"
    incident = Incident(name, state.job_id, state.restarts, e.at, state.step, stage=Stage.STARTING)
    incident = inc.mark(incident, e.at, "seen", words)
    state = replace(state, incident=incident, phase=Phase.RECOVERING, since=e.at)
    bad = tuple(n for n in dict.fromkeys((*known, *e.lost_nodes)) if n not in state.excluded)
    state = inc.new_attempt(state, e.at, e.job_id, e.restarts)
    step: Step = (state, ())
    if bad and e.state == "PENDING":
        until = e.at + state.policy.expiry
        new = tuple(Exclusion(n, e.at, until, "excluded", name, "lost when Slurm requeued the job") for n in bad)
        state = replace(state, exclusions=(*state.exclusions, *new))
        state = replace(state, incident=inc.mark(incident, e.at, "isolated", f"{', '.join(bad)} excluded"))
        step = _patch(state)
    return both(step, _job_seen(step[0], e))


def _job_ended(state: State, e: ev.JobSeen) -> Step:
    if state.phase is Phase.STOPPING:
        return _over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    if e.state == "COMPLETED":
        return _over(state, e.at, Phase.DONE, "", 0)
    if e.state == "CANCELLED":
        return _over(state, e.at, Phase.STOPPED, "the job was cancelled in Slurm (scancel)", 130)
    if state.incident is not None and state.incident.ended:
        return state, ()
    words = f"the job ended: {e.state}" + (f", exit code {e.exit_code}" if e.exit_code is not None else "")
    return inc.sign(state, e.at, words, ended=e.state, exit_code=e.exit_code)


def _job_gone(state: State, e: ev.JobGone) -> Step:
    if e.job_id != state.job_id or _restarting(state):
        return state, ()
    if state.phase is Phase.STOPPING:
        return _over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    if state.phase is Phase.FINISHING:
        return _over(state, e.at, Phase.DONE, "", 0)
    incident = state.incident
    busy = incident is not None and incident.stage is not Stage.STARTING
    if incident is not None and busy and (incident.ended or incident.stage is not Stage.EXAMINING):
        return state, ()
    return inc.sign(state, e.at, "Slurm has forgotten the job", ended="GONE")


def _over(state: State, at: float, phase: Phase, verdict: str, exit_code: int) -> Step:
    state = inc.close(state, at, phase.value)
    return replace(state, phase=phase, since=at, verdict=verdict, exit_code=exit_code, pending=()), ()


def _slurm_lost(state: State, e: ev.SlurmLost) -> Step:
    return (state, ()) if state.slurm_lost else (replace(state, slurm_lost=e.error or "no answer"), ())


def _slurm_back(state: State, e: ev.SlurmBack) -> Step:
    return replace(state, slurm_lost=""), ()


def _launch_seen(state: State, e: ev.LaunchSeen) -> Step:
    job_id, restarts = parse_attempt(e.attempt)
    step: Step = (state, ())
    if job_id == state.job_id and restarts > state.restarts and not _restarting(state):
        step = _requeued_behind(state, ev.JobSeen(e.at, job_id, restarts, "RUNNING", nodes=e.nodes))
    state = step[0]
    if e.attempt != state.attempt or state.launched:
        return step
    state = replace(state, launched=True, nodes=e.nodes or state.nodes)
    if state.incident is not None and state.incident.stage is Stage.STARTING:
        words = f"training step started: {e.world_size} ranks on {len(e.nodes)} nodes"
        state = replace(state, incident=inc.mark(state.incident, e.at, "launched", words))
    return state, step[1]


def _outcome_seen(state: State, e: ev.OutcomeSeen) -> Step:
    if e.attempt != state.attempt or state.phase is Phase.STOPPING:
        return state, ()
    if e.status == "done":
        return replace(state, phase=Phase.FINISHING, since=e.at), ()
    reached = min((x.step for x in e.exits), default=-1)  # beats are a second old at most; the wrappers know exactly
    state = replace(state, step=max(reached, state.step), max_step=max(reached, state.max_step))
    if e.status != "failed" or (state.incident is not None and state.incident.outcome is not None):
        return state, ()
    return inc.sign(state, e.at, e.why, outcome=e)


def _mine(state: State, attempt: str) -> bool:
    return attempt == state.attempt and state.phase not in (Phase.STOPPING, Phase.FINISHING)


def _node_silent(state: State, e: ev.NodeSilent) -> Step:
    if not _mine(state, e.attempt):
        return state, ()
    known = state.incident.quiet_nodes if state.incident and state.incident.stage is Stage.EXAMINING else ()
    words = f"{e.node} silent for {e.silent_for:.1f} s"
    return inc.sign(state, e.at, words, quiet_nodes=tuple(dict.fromkeys((*known, e.node))))


def _node_back(state: State, e: ev.NodeBack) -> Step:
    return state, ()  # the probes decide; a node that came back answers them


def _ranks_quiet(state: State, e: ev.RanksQuiet) -> Step:
    if not _mine(state, e.attempt):
        return state, ()
    known = state.incident.quiet_nodes if state.incident and state.incident.stage is Stage.EXAMINING else ()
    who = f", ranks {', '.join(map(str, e.culprits))} stand out" if e.culprits else ""
    words = f"no step for {e.quiet_for:.1f} s (limit {e.limit:.1f} s) after step {e.step}{who}"
    nodes = tuple(dict.fromkeys((*known, *e.nodes)))
    return inc.sign(state, e.at, words, quiet=True, quiet_over=False, quiet_nodes=nodes)


def _ranks_back(state: State, e: ev.RanksBack) -> Step:
    incident = state.incident
    if not _mine(state, e.attempt) or incident is None or incident.stage is not Stage.EXAMINING or not incident.quiet:
        return state, ()
    incident = inc.mark(replace(incident, quiet_over=True), e.at, "seen", "the ranks step again")
    return inc.advance(replace(state, incident=incident), e.at)


def _step_seen(state: State, e: ev.StepSeen) -> Step:
    if e.attempt != state.attempt or e.step <= state.step:
        return state, ()
    state = replace(state, step=e.step, max_step=max(e.step, state.max_step))
    if state.incident is not None and state.incident.stage is Stage.STARTING:
        state = replace(state, incident=inc.mark(state.incident, e.at, "first_step", f"step {e.step} done"))
        state = inc.close(state, e.at, "recovered")
    if state.phase in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING) and state.incident is None:
        state = replace(state, phase=Phase.TRAINING, since=e.at)
    return state, ()


def _checkpoint_seen(state: State, e: ev.CheckpointSeen) -> Step:
    return replace(state, durable=max(e.step, state.durable)), ()


def _examined(state: State, e: ev.Examined) -> Step:
    if not any(a.key == e.key for a in state.pending):
        return state, ()
    state = done(state, e.key)
    if state.incident is not None and e.key.startswith(f"{state.incident.id}/"):
        incident = replace(state.incident, log_category=e.category, log_line=e.line)
        if e.line:
            incident = inc.mark(incident, e.at, "examined", f"{e.where}: {e.line}")
        state = replace(state, incident=incident)
    return inc.advance(state, e.at)


def _probed(state: State, e: ev.Probed) -> Step:
    if not any(a.key == e.key for a in state.pending):
        return state, ()
    return inc.probed(done(state, e.key), e.at, e.node, e.verdict, e.evidence)


def _isolated(state: State, e: ev.Isolated) -> Step:
    if not any(a.key == e.key for a in state.pending):
        return state, ()
    return inc.isolated(done(state, e.key), e.at, e.node, e.how, e.detail)


def _restarted(state: State, e: ev.Restarted) -> Step:
    state = done(state, e.key)
    if state.phase is Phase.STOPPING:  # stopped while the restart was under way: the new start must not live on
        state = replace(state, job_id=e.job_id, restarts=e.restarts)
        return order(state, Cancel(f"cancel/{e.job_id}/{e.restarts}", e.job_id))
    if not _restarting(state) or (e.job_id, e.restarts) == (state.job_id, state.restarts):
        return state, ()
    return inc.restarted(state, e.at, e.job_id, e.restarts, e.how), ()


def _acted(state: State, e: ev.Acted) -> Step:
    return done(state, e.key), ()


def _action_failed(state: State, e: ev.ActionFailed) -> Step:
    action = next((a for a in state.pending if a.key == e.key), None)
    if action is None:
        return state, ()
    state = done(state, e.key)
    if isinstance(action, Submit):
        return _over(state, e.at, Phase.FAILED, f"Cannot submit the job: {e.error}", 1)
    if isinstance(action, Cancel):
        return _over(state, e.at, inc.final_phase(state), f"{state.verdict} (cancelling failed: {e.error})", 1)
    if state.incident is not None and e.key.startswith(f"{state.incident.id}/restart"):
        return inc.restart_refused(state, e.at, e.error)
    if state.incident is not None:
        state = replace(state, incident=inc.mark(state.incident, e.at, "refused", e.error))
    return inc.advance(state, e.at)


def _stop_asked(state: State, e: ev.StopAsked) -> Step:
    if state.phase is Phase.STOPPING:
        return state, ()
    state = replace(state, stop_asked=True, verdict=f"stopped by {e.who}", exit_code=130)
    if not state.job_id:  # the submission is under way: cancel it as soon as its job id is known
        return state, ()
    state = inc.close(state, e.at, "stopped")
    state = replace(state, phase=Phase.STOPPING, since=e.at)
    return order(state, Cancel(f"cancel/{state.job_id}/{state.restarts}", state.job_id))


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], Step]] = {
    ev.Started: _started,
    ev.Tick: _tick,
    ev.Submitted: _submitted,
    ev.JobSeen: _job_seen,
    ev.JobGone: _job_gone,
    ev.SlurmLost: _slurm_lost,
    ev.SlurmBack: _slurm_back,
    ev.LaunchSeen: _launch_seen,
    ev.OutcomeSeen: _outcome_seen,
    ev.NodeSilent: _node_silent,
    ev.NodeBack: _node_back,
    ev.RanksQuiet: _ranks_quiet,
    ev.RanksBack: _ranks_back,
    ev.StepSeen: _step_seen,
    ev.CheckpointSeen: _checkpoint_seen,
    ev.Examined: _examined,
    ev.Probed: _probed,
    ev.Isolated: _isolated,
    ev.Restarted: _restarted,
    ev.Acted: _acted,
    ev.ActionFailed: _action_failed,
    ev.StopAsked: _stop_asked,
}
