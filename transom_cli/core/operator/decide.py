"""The operator's core: `decide(state, event) -> (state, actions)`.

Total and calm: any event in any state is answered; a late or doubled one changes nothing. No clock, no file, no
environment. An event type that nobody handles is a TypeError at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.diagnose import PREFLIGHT, UNKNOWN
from transom_cli.core.incident import Stage
from transom_cli.core.operator import healing, idle, job
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator.actions import Action, Cancel, Examine, Isolate, Patch, Probe, Release, Restart, Submit
from transom_cli.core.operator.asking import Step, both, done, order
from transom_cli.core.operator.state import Phase, SavesFail, State
from transom_cli.layout import parse_attempt
from transom_cli.plural import several

_CANCELLED = "job_cancelled"  # the kind of the error by which Slurm's side refuses to go on with such a job


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
    if state.phase is Phase.FINISHING:
        return job.finish(state, e.at)
    if state.phase is Phase.HELD:
        step = job.release_forgotten(state, e.at)
        if step[1]:
            return step
    expired = tuple(x.node for x in state.exclusions if x.until is not None and x.until <= e.at)
    if expired and job.waiting(state):
        return job.patch(state, drop=expired)
    return job.waive_spares(state, e.at) if job.waiting(state) else (state, ())


def _submitted(state: State, e: ev.Submitted) -> Step:
    if _asked(state, e.key, Submit):
        state = done(state, e.key)
    if state.job_id:
        return state, ()
    state = replace(state, job_id=e.job_id, slurm_state="PENDING", phase=Phase.PENDING, since=e.at)
    state = replace(state, let_go=state.attempt if e.released else "")
    return job.cancel(state, e.at) if state.stop_asked else (state, ())


def _submission_answered(state: State, e: ev.SubmissionAnswered) -> Step:
    if e.number <= sum(key == e.key for key, _ in state.submissions):
        return state, ()
    state = replace(state, submissions=(*state.submissions, (e.key, e.job_id)))
    if e.job_id and not state.job_id and state.stop_asked:
        return _submitted(state, ev.Submitted(e.at, e.key, e.job_id))
    return state, ()


def _slurm_lost(state: State, e: ev.SlurmLost) -> Step:
    return (state, ()) if state.slurm_lost else (replace(state, slurm_lost=e.error or "no answer"), ())


def _slurm_back(state: State, e: ev.SlurmBack) -> Step:
    return replace(state, slurm_lost=""), ()


def _start_told(state: State, e: ev.LaunchSeen | ev.OutcomeSeen, succeeds: int = 0) -> Step:
    """A launcher's word of a start that Slurm has not told of yet."""
    job_id, restarts = parse_attempt(e.attempt)
    if job_id == state.job_id and restarts > state.restarts:
        return job.seen(state, ev.JobSeen(e.at, job_id, restarts, "RUNNING", nodes=e.nodes))
    if succeeds and job_id != state.job_id:
        return job.seen(state, ev.JobSeen(e.at, job_id, restarts, "RUNNING", nodes=e.nodes, succeeds=succeeds))
    return state, ()


def _launch_seen(state: State, e: ev.LaunchSeen) -> Step:
    step = _start_told(state, e, e.succeeds)
    state = step[0]
    if e.attempt != state.attempt or (state.launched and e.launch <= state.launch):
        return step
    if state.launched and not _mine(state, e.attempt):
        return step
    if state.launched:
        words = f"training step started again in the same allocation (launch {e.launch})"
        state = healing.relaunched(replace(state, idle=e.idle), e.at, e.launch, words)
    else:
        state = _first_launch(state, e)
    found = idle.found(state, e.at, e.faults) if _mine(state, e.attempt) and not job.restarting(state) else (state, ())
    return both((state, step[1]), found)


def _first_launch(state: State, e: ev.LaunchSeen) -> State:
    state = replace(state, launched=True, launch=e.launch, nodes=(*e.nodes, *e.idle) or state.nodes, idle=e.idle)
    if state.incident is not None and state.incident.stage is Stage.STARTING:
        words = f"training step started: {several(e.world_size, 'rank')} on {several(len(e.nodes), 'node')}"
        state = replace(state, incident=inc.mark(state.incident, e.at, "launched", words))
    return state


def _heal_seen(state: State, e: ev.HealSeen) -> Step:
    if not _mine(state, e.attempt) or job.restarting(state):
        return state, ()
    e = replace(e, faults=_of_ours(state, e.faults)) if e.faults else e
    state = healing.told(state if e.durable is None else replace(state, durable=e.durable), e)
    return idle.given_up(state, e) if e.what == "swapped" else (state, ())


def _of_ours(state: State, faults: tuple[ev.NodeFault, ...]) -> tuple[ev.NodeFault, ...]:
    return tuple(f for f in faults if f.node in state.nodes)


def _outcome_seen(state: State, e: ev.OutcomeSeen) -> Step:
    """One that was left before its first launch may be the first that is heard of its attempt."""
    if e.status == "left" and e.cause in (PREFLIGHT, "isolated_nodes") and not job.restarting(state):
        step = _start_told(state, e)
        if step[0].attempt == e.attempt and not step[0].launched:
            step = (replace(step[0], nodes=e.nodes or step[0].nodes), step[1])
        return both(step, _ended(step[0], e))
    return _ended(state, e)


def _ended(state: State, e: ev.OutcomeSeen) -> Step:
    if e.attempt != state.attempt or state.phase is Phase.STOPPING or job.restarting(state):
        return state, ()
    e = replace(e, faults=_of_ours(state, e.faults))
    if e.status == "done":
        if state.incident is not None:  # whatever it was, the training has ended well
            state = inc.close(state, e.at, "recovered" if job.starting(state) else "nothing")
        return replace(state, phase=Phase.FINISHING, since=e.at), ()
    # beats are a second old at most; the wrappers know exactly
    state = _reached(state, e)
    state = replace(state, durable=max(e.durable, state.durable))
    told = not job.starting(state) and state.incident is not None and state.incident.outcome is not None
    if e.status not in ("failed", "left") or told:
        return state, ()
    if e.cause == "hang":
        suspects = _suspects(state, e.suspects)
        return inc.sign(state, e.at, e.why, e.faults, outcome=e, quiet=True, quiet_over=False, quiet_nodes=suspects)
    return inc.sign(state, e.at, e.why, e.faults, outcome=e)


def _reached(state: State, e: ev.OutcomeSeen) -> State:
    own = any(x.step >= 0 and not x.since_start for x in e.exits)
    exits = [x for x in e.exits if not (own and x.since_start)]
    step = min((x.step for x in exits), default=e.step)
    since_start = not own and (e.since_start or any(x.since_start for x in exits))
    if step < 0:
        return state
    return _stepped(state, step, since_start, max(step, e.step))


def _stepped(state: State, step: int, since_start: bool, made: int) -> State:
    """made: the most steps of a launch of the attempt, where they count from the start of the processes."""
    if state.since_start and not since_start:  # now the training's own step is known
        return replace(state, step=step, max_step=step, since_start=False)
    state = replace(state, step=max(step, state.step), max_step=max(step, state.max_step), since_start=since_start)
    return replace(state, made=max(made, state.made)) if since_start else state


def _mine(state: State, attempt: str) -> bool:
    return attempt == state.attempt and state.phase not in (Phase.STOPPING, Phase.FINISHING)


def _suspects(state: State, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """These nodes beside those already suspected in the open incident; never one that is not in our job."""
    known = state.incident.quiet_nodes if state.incident is not None and not job.starting(state) else ()
    return tuple(n for n in dict.fromkeys((*known, *nodes)) if n in state.nodes)


def _node_silent(state: State, e: ev.NodeSilent) -> Step:
    if not _mine(state, e.attempt) or e.node not in state.nodes or state.suspended:
        return state, ()
    standing_by = any(n not in {x.node for x in state.idle_looks} for n in state.idle)
    if e.node in state.idle or (e.launcher and standing_by):
        return idle.suspect(state, e.node)  # its launcher has a spare for it
    words = f"{e.node} silent for {e.silent_for:.1f} s"
    return inc.silence(state, e.at, words, _suspects(state, (e.node,)))


def _node_back(state: State, e: ev.NodeBack) -> Step:
    return state, ()  # the probes decide; a node that came back answers them


def _stalled(state: State, e: ev.Stalled) -> Step:
    if not _mine(state, e.attempt) or state.suspended:
        return state, ()
    stall = e.stall
    if stall.step < 0 and state.max_step < 0 and not stall.stopped:
        return state, ()  # a trainer that never beats: its silence says nothing, and a restart would loop
    suspects, overdue = _suspects(state, stall.nodes), stall.overdue
    if stall.unseen:
        return inc.silence(state, e.at, f"{stall.words}; none of these ranks can be seen", _suspects(state, overdue))
    return inc.sign(state, e.at, stall.words, quiet=True, quiet_over=False, quiet_nodes=suspects, overdue_nodes=overdue)


def _stall_ended(state: State, e: ev.StallEnded) -> Step:
    incident = state.incident
    if not _mine(state, e.attempt) or incident is None or not incident.quiet:
        return state, ()
    if incident.stage is Stage.WAITING and incident.outcome is None and not incident.ended and not incident.dead:
        incident = inc.mark(incident, e.at, "nothing", "the ranks step again during the back-off")
        state = inc.close(replace(state, incident=incident), e.at, "nothing")
        return replace(state, phase=Phase.TRAINING, since=e.at), ()
    if incident.stage is not Stage.EXAMINING:
        return state, ()
    incident = inc.mark(replace(incident, quiet_over=True), e.at, "seen", "the ranks step again")
    return inc.advance(replace(state, incident=incident), e.at)


def _step_seen(state: State, e: ev.StepSeen) -> Step:
    recounted = state.since_start and not e.since_start and e.step >= 0
    if e.attempt != state.attempt or (e.step <= state.step and not recounted):
        return state, ()
    state = _stepped(state, e.step, e.since_start, e.step)
    if state.incident is not None and state.incident.stage is Stage.STARTING:
        state = replace(state, incident=inc.mark(state.incident, e.at, "first_step", f"step {e.step} done"))
        state = inc.close(state, e.at, "recovered")
    if state.phase in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING) and state.incident is None:
        state = replace(state, phase=Phase.TRAINING, since=e.at)
    return state, ()


def _checkpoint_seen(state: State, e: ev.CheckpointSeen) -> Step:
    fails = state.saves_fail
    if fails is not None and e.step > fails.step:  # one that was written since, though nobody has said so
        state = replace(state, saves_fail=None)
    return replace(state, durable=max(e.step, state.durable)), ()


def _saves_seen(state: State, e: ev.SavesSeen) -> Step:
    if e.attempt != state.attempt:
        return state, ()
    if e.failed <= 0:
        return replace(state, saves_fail=None), ()
    before = state.saves_fail
    since, attempt = (before.since, before.attempt) if before is not None else (e.at, e.attempt)
    fails = SavesFail(since, attempt, e.failed, e.step, e.why, max(e.good, before.good if before is not None else -1))
    return replace(state, saves_fail=fails), ()


def _asked(state: State, key: str, *kinds: type[Action], **about: object) -> bool:
    """An answer counts while its question is open, once, and only if it is one of the right kind and about the same."""
    asked = (a for a in state.pending if a.key == key and isinstance(a, kinds))
    return any(all(getattr(a, name) == value for name, value in about.items()) for a in asked)


def _examined(state: State, e: ev.Examined) -> Step:
    if not _asked(state, e.key, Examine):
        return state, ()
    state = done(state, e.key)
    if state.incident is not None and e.key.startswith(f"{state.incident.id}/"):
        incident = replace(state.incident, log_category=e.category, log_line=e.line)
        if e.line:
            incident = inc.mark(incident, e.at, "examined", f"{e.where}: {e.line}")
        state = replace(state, incident=incident)
    return inc.advance(state, e.at)


def _probed(state: State, e: ev.Probed) -> Step:
    if not _asked(state, e.key, Probe, node=e.node):
        return state, ()
    probed = idle.probed if e.key.startswith(idle.PREFIX) else inc.probed
    return probed(done(state, e.key), e.at, e.key, e.node, e.verdict, e.evidence)


def _isolated(state: State, e: ev.Isolated) -> Step:
    if not _asked(state, e.key, Isolate, node=e.node):
        return state, ()
    if e.key.startswith(idle.PREFIX):
        return idle.isolated(done(state, e.key), e.at, e)
    return inc.isolated(done(state, e.key), e.at, e.node, e.how, e.detail)


def _restarted(state: State, e: ev.Restarted) -> Step:
    if not _asked(state, e.key, Restart):
        return state, ()
    state = done(state, e.key)
    if state.phase is Phase.STOPPING:  # stopped while the restart was under way: the new start must not live on
        state = inc.new_attempt(inc.close(state, e.at, "stopped"), e.job_id, e.restarts)
        return job.cancel(state, e.at)
    state = inc.restarted(state, e.at, e.job_id, e.restarts, e.how)
    return state if e.how == "already" else replace(state, let_go=state.attempt), ()


def _acted(state: State, e: ev.Acted) -> Step:
    if not _asked(state, e.key, Cancel, Patch, Release):
        return state, ()
    if state.phase is Phase.FINISHING and e.key.startswith(job.FINISH):
        return job.over(state, e.at, Phase.DONE, "", 0)
    if e.key == job.UNSUBMITTED and not state.job_id:
        return job.over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    return done(state, e.key), ()


def _action_failed(state: State, e: ev.ActionFailed) -> Step:
    """What could not be done is an answer too: of a probe an unknown, of an isolation the exclusion that is our own."""
    action = next((a for a in state.pending if a.key == e.key), None)
    if action is None:
        return state, ()
    if isinstance(action, Probe):
        return _probed(state, ev.Probed(e.at, e.key, action.node, "UNKNOWN", e.error))
    if isinstance(action, Examine):
        return _examined(state, ev.Examined(e.at, e.key, "unknown", e.error, "the logs could not be read"))
    if isinstance(action, Isolate):
        return _isolated(state, ev.Isolated(e.at, e.key, action.node, "excluded", e.error))
    state = done(state, e.key)
    if state.phase is Phase.FINISHING and isinstance(action, Cancel):
        return job.over(state, e.at, Phase.DONE, "", 0)  # the training is done, whatever Slurm still holds
    if isinstance(action, Submit):
        words = f"Cannot submit the job: {e.error}"
        return job.over(state, e.at, inc.final_phase(state), words, state.exit_code or 1)
    if isinstance(action, Cancel):
        words = f"{state.verdict} (cancelling failed: {e.error})"
        return job.over(state, e.at, inc.final_phase(state), words, UNKNOWN)  # the job may live on
    if isinstance(action, Restart) and state.phase is Phase.STOPPING:
        return job.cancel(inc.close(state, e.at, "stopped"), e.at)
    if isinstance(action, Restart) and e.kind == _CANCELLED:
        return job.over(state, e.at, Phase.STOPPED, e.error, 130)
    if isinstance(action, Restart):
        return inc.restart_refused(state, e.at, e.error)
    if state.incident is not None:
        state = replace(state, incident=inc.mark(state.incident, e.at, "refused", e.error))
    return state, ()


def _stop_asked(state: State, e: ev.StopAsked) -> Step:
    if state.phase is Phase.STOPPING or state.stop_asked:
        return state, ()
    state = replace(state, stop_asked=True, verdict=f"stopped by {e.who}", exit_code=130)
    if not state.job_id:
        return job.cancel_submission(state, e.at)
    if job.restarting(state):  # let it come to its end first: cut off half-way, it could leave a job that lives on
        return replace(state, phase=Phase.STOPPING, since=e.at), ()
    return job.cancel(replace(inc.close(state, e.at, "stopped"), pending=()), e.at)


def _lift_asked(state: State, e: ev.LiftAsked) -> Step:
    """Such an exclusion ends at once: the waiting job is told; else the next restart, as with one that has expired."""
    if e.request in state.lifts:
        return state, ()
    state = replace(state, lifts=(*state.lifts, e.request))
    lifted = tuple(x.node for x in state.exclusions if x.node in e.nodes)
    if not lifted:
        return state, ()
    if state.incident is not None:
        words = f"{', '.join(lifted)} lifted by {e.who}"
        state = replace(state, incident=inc.mark(state.incident, e.at, "lifted", words))
    if job.waiting(state):
        return job.patch(state, drop=lifted)
    ended = (replace(x, until=e.at) if x.node in lifted else x for x in state.exclusions)
    return replace(state, exclusions=tuple(ended)), ()


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], Step]] = {
    ev.Started: _started,
    ev.Tick: _tick,
    ev.Submitted: _submitted,
    ev.SubmissionAnswered: _submission_answered,
    ev.JobSeen: job.seen,
    ev.JobGone: job.gone,
    ev.SlurmLost: _slurm_lost,
    ev.SlurmBack: _slurm_back,
    ev.LaunchSeen: _launch_seen,
    ev.HealSeen: _heal_seen,
    ev.OutcomeSeen: _outcome_seen,
    ev.NodeSilent: _node_silent,
    ev.NodeBack: _node_back,
    ev.Stalled: _stalled,
    ev.StallEnded: _stall_ended,
    ev.StepSeen: _step_seen,
    ev.CheckpointSeen: _checkpoint_seen,
    ev.SavesSeen: _saves_seen,
    ev.Examined: _examined,
    ev.Probed: _probed,
    ev.Isolated: _isolated,
    ev.Restarted: _restarted,
    ev.Acted: _acted,
    ev.ActionFailed: _action_failed,
    ev.StopAsked: _stop_asked,
    ev.LiftAsked: _lift_asked,
}
