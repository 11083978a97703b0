"""The operator's core: `decide(state, event) -> (state, actions)`.

It answers any event in any state; a late or repeated event changes nothing. It uses no clock, file or environment. An
unknown event type raises TypeError.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.incident import Sign, Stage
from transom_cli.core.operator import answers, idle, job, observing, relaunches
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator.actions import Release, Submit
from transom_cli.core.operator.state import (
    Budget,
    Idle,
    Job,
    Launch,
    Leaving,
    LossReport,
    Phase,
    SavesFail,
    State,
    Step,
    both,
    order,
)  # fmt: skip
from transom_cli.layout import parse_attempt
from transom_cli.plural import several

_TIMERS: tuple[tuple[Callable[[State], float | None], Callable[[State, float], Step]], ...] = (
    (inc.due_at, inc.advance),
    (job.finish_at, job.finish),
    (job.release_at, job.release),
    (job.expiry_at, job.expire),
    (job.waive_at, job.waive_spares),
)
"""When a Tick has an effect, and which; the first that is due acts."""


def decide(state: State, event: ev.Event) -> Step:
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise TypeError(f"no handler for {type(event).__name__}")
    if state.phase.over and not isinstance(event, (ev.Started, ev.Resumed)):
        return state, ()
    return handler(state, event)


def next_deadline(state: State) -> float | None:
    """Return the time of the next Tick that has an effect; None if only another event can change the state."""
    if state.phase.over:
        return None
    due = (due_at(state) for due_at, _ in _TIMERS)
    return min((at for at in due if at is not None), default=None)


def _tick(state: State, e: ev.Tick) -> Step:
    for due_at, act in _TIMERS:
        due = due_at(state)
        if due is not None and due <= e.at:
            return act(state, e.at)
    return state, ()


def _started(state: State, e: ev.Started) -> Step:
    state = replace(state, epoch=e.epoch)
    if state.phase.over:
        return state, ()
    if not state.job.id and not state.pending:
        return order(replace(state, since=e.at), Submit("submit"))
    return state, state.pending  # unanswered actions are ordered again: each is safe to repeat


def _slurm_lost(state: State, e: ev.SlurmLost) -> Step:
    if state.slurm_error:
        return state, ()
    return replace(state, slurm_error=e.error or "no answer", slurm_lost_at=e.answered or e.at), ()


def _slurm_back(state: State, e: ev.SlurmBack) -> Step:
    return replace(state, slurm_error=""), ()


def _start_reported(state: State, e: ev.LaunchSeen | ev.OutcomeSeen, succeeds: int = 0) -> Step:
    """A launcher reports a start that Slurm has not reported yet."""
    job_id, restarts = parse_attempt(e.attempt)
    if job_id == state.job.id and restarts > state.job.restarts:
        return job.seen(state, ev.JobSeen(e.at, job_id, restarts, "RUNNING", nodes=e.nodes))
    if succeeds and job_id != state.job.id:
        return job.seen(state, ev.JobSeen(e.at, job_id, restarts, "RUNNING", nodes=e.nodes, succeeds=succeeds))
    return state, ()


def _launch_seen(state: State, e: ev.LaunchSeen) -> Step:
    step = _start_reported(state, e, e.succeeds)
    state = step[0]
    if e.attempt != state.attempt or (state.launch.started and e.launch <= state.launch.number):
        return step
    if state.launch.started and not _mine(state, e.attempt):
        return step
    first = not state.launch.started
    state = state.in_job_step(e.job_step)
    state = replace(state, idle=replace(state.idle, nodes=e.idle))
    if first:
        state = _first_launch(state, e)
    else:
        words = f"training step started again in the same allocation (launch {e.launch})"
        state = relaunches.relaunched(state, e.at, e.launch, words)
        extra = tuple(n for n in e.nodes if n not in state.job.nodes)
        state = replace(state, launch=replace(state.launch, extra=extra))
    found = idle.found(state, e.at, e.faults) if _mine(state, e.attempt) and not state.restarting else (state, ())
    return both((state, step[1]), found)


def _first_launch(state: State, e: ev.LaunchSeen) -> State:
    launch = replace(state.launch, started=True, number=e.launch)
    state = replace(state, launch=launch, job=replace(state.job, nodes=(*e.nodes, *e.idle) or state.job.nodes))
    if state.incident is not None and state.starting:
        words = f"training step started: {several(e.world_size, 'rank')} on {several(len(e.nodes), 'node')}"
        state = state.mark(e.at, "launched", words)
    return state


def _recovery_seen(state: State, e: ev.RecoverySeen) -> Step:
    if not _mine(state, e.attempt) or state.restarting:
        return state, ()
    if e.what == "report":
        known = state.launch.bad_loss
        if known is not None and e.step <= known.step:
            return state, ()  # an operator that takes over reads the launcher's journal from its beginning
        found = LossReport(e.step, e.cause, e.words, e.good)
        return replace(state, launch=replace(state.launch, bad_loss=found)), ()
    e = replace(e, faults=_of_ours(state, e.faults)) if e.faults else e
    if e.what == "leaving":
        state = replace(state, launch=replace(state.launch, leaving=Leaving(e.at, e.cause, e.words)))
    if e.what == "top-up":
        state = replace(state, launch=replace(state.launch, top_up=e.words))
    if e.what == "older":
        state = replace(state, launch=replace(state.launch, older=e.words))
    if e.what == "late":
        state = replace(state, launch=replace(state.launch, late=e.words))
    state = relaunches.reported(state if e.durable is None else _durable(state, e.durable), e)
    return idle.given_up(state, e) if e.what == "swapped" else (state, ())


def _durable(state: State, step: int) -> State:
    return replace(state, progress=replace(state.progress, durable=step))


def _of_ours(state: State, faults: tuple[ev.NodeFault, ...]) -> tuple[ev.NodeFault, ...]:
    return tuple(f for f in faults if f.node in state.job.nodes)


def _job_step_done(state: State, e: ev.JobStepDone) -> Step:
    """A fault that is being examined has not kept the step from its end. The attempt continues."""
    if not _mine(state, e.attempt) or state.incident is None:
        return state, ()
    if state.incident.stage not in (Stage.EXAMINING, Stage.RELAUNCHING):
        return state, ()
    return inc.close(state, e.at, "nothing").in_phase(Phase.TRAINING, e.at), ()


def _outcome_seen(state: State, e: ev.OutcomeSeen) -> Step:
    """The outcome of an attempt without a launch may be the first report about it."""
    if e.status == "left" and e.cause in (PREFLIGHT, "isolated_nodes") and not state.restarting:
        step = _start_reported(state, e)
        if step[0].attempt == e.attempt and not step[0].launch.started:
            step = (replace(step[0], job=replace(step[0].job, nodes=e.nodes or step[0].job.nodes)), step[1])
        return both(step, _ended(step[0], e))
    return _ended(state, e)


def _ended(state: State, e: ev.OutcomeSeen) -> Step:
    if e.attempt != state.attempt or state.phase is Phase.STOPPING or state.restarting:
        return state, ()
    e = replace(e, faults=_of_ours(state, e.faults))
    if e.status == "done":
        if state.incident is not None:  # the training has ended well nevertheless
            state = inc.close(state, e.at, "recovered" if state.starting else "nothing")
        return state.in_phase(Phase.FINISHING, e.at), ()
    state = _stepped(state, e)  # heartbeats are up to a second old; the rank wrappers know exactly
    state = _durable(state, max(e.durable, state.progress.durable))
    known = not state.starting and state.incident is not None and state.incident.outcome is not None
    if e.status == "stopped":
        return replace(state, launch=replace(state.launch, stopped=e.why)), ()
    if e.status not in ("failed", "left") or known:
        return state, ()
    hang = e.cause == "hang"
    suspects = _suspects(state, e.suspects) if hang else ()
    return inc.sign(state, Sign(e.at, e.why, suspects, hang, outcome=e, faults=e.faults))


def _stepped(state: State, e: ev.OutcomeSeen) -> State:
    own = any(x.step >= 0 and not x.since_start for x in e.exits)
    exits = [x for x in e.exits if not (own and x.since_start)]
    step = min((x.step for x in exits), default=e.step)
    since_start = not own and (e.since_start or any(x.since_start for x in exits))
    if step < 0:
        return state
    return replace(state, progress=state.progress.stepped(step, since_start, max(step, e.step)))


def _mine(state: State, attempt: str) -> bool:
    return attempt == state.attempt and state.phase not in (Phase.STOPPING, Phase.FINISHING)


def _suspects(state: State, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Add these nodes to the suspects of the open incident; never a node outside our job."""
    known = state.incident.suspect_nodes if state.incident is not None and not state.starting else ()
    return tuple(n for n in dict.fromkeys((*known, *nodes)) if n in state.job.nodes)


def _node_silent(state: State, e: ev.NodeSilent) -> Step:
    if not _mine(state, e.attempt) or e.node not in state.job.nodes or state.job.suspended:
        return state, ()
    spare = any(state.idle.probes_of(n) is None for n in state.idle.nodes)
    shrinks = 0 < state.request.fewest < len(state.job.nodes) - len(state.idle.nodes)
    if e.node in state.idle.nodes or (e.launcher and (spare or shrinks)):
        return idle.suspect(state, e.node)  # its launcher has a spare for it, or does without it
    words = f"{e.node} silent for {e.silent_for:.1f} s"
    return inc.silence(state, Sign(e.at, words, _suspects(state, (e.node,))))


def _stalled(state: State, e: ev.Stalled) -> Step:
    if not _mine(state, e.attempt) or state.job.suspended:
        return state, ()
    stall = e.stall
    if stall.step < 0 and state.progress.max_step < 0 and not stall.stopped:
        return state, ()  # a trainer without heartbeats: its silence says nothing, and a restart would loop
    if stall.unseen:
        words = f"{stall.words}; none of these ranks can be seen"
        return inc.silence(state, Sign(e.at, words, _suspects(state, stall.overdue)))
    return inc.sign(state, Sign(e.at, stall.words, _suspects(state, stall.nodes), hang=True, stall=stall))


def _stall_ended(state: State, e: ev.StallEnded) -> Step:
    incident = state.incident
    if not _mine(state, e.attempt) or incident is None or not incident.stalled:
        return state, ()
    if state.withholding:
        return observing.recovered(state, e.at, "the ranks step again, without an action"), ()
    if incident.stage is Stage.WAITING and incident.silence_only:
        state = state.mark(e.at, "nothing", "the ranks step again during the back-off")
        return inc.close(state, e.at, "nothing").in_phase(Phase.TRAINING, e.at), ()
    if incident.stage is not Stage.EXAMINING:
        return state, ()
    incident = replace(incident, stall_over=True).marked(e.at, "seen", "the ranks step again")
    return inc.advance(replace(state, incident=incident), e.at)


def _step_seen(state: State, e: ev.StepSeen) -> Step:
    if e.attempt != state.attempt or not state.progress.newer(e.step, e.since_start):
        return state, ()
    state = replace(state, progress=state.progress.stepped(e.step, e.since_start, e.step))
    if state.starting:
        state = inc.close(state.mark(e.at, "first_step", f"step {e.step} done"), e.at, "recovered")
    state = observing.stepped(state, e.at, e.step)
    if state.phase in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING) and state.incident is None:
        state = state.in_phase(Phase.TRAINING, e.at)
    return state, ()


def _checkpoint_seen(state: State, e: ev.CheckpointSeen) -> Step:
    fails = state.saves_fail
    if fails is not None and e.step > fails.step:  # written since, though nobody reported that
        state = replace(state, saves_fail=None)
    return _durable(state, max(e.step, state.progress.durable)), ()


def _saves_seen(state: State, e: ev.SavesSeen) -> Step:
    if e.attempt != state.attempt:
        return state, ()
    if e.failed <= 0:
        return replace(state, saves_fail=None), ()
    before = state.saves_fail
    since, attempt = (before.since, before.attempt) if before is not None else (e.at, e.attempt)
    fails = SavesFail(since, attempt, e.failed, e.step, e.why, max(e.good, before.good if before is not None else -1))
    return replace(state, saves_fail=fails), ()


def _stop_requested(state: State, e: ev.StopRequested) -> Step:
    if state.phase is Phase.STOPPING or state.stop_requested:
        return state, ()
    state = state.requested(e.at, "stop", e.who)
    state = replace(state, stop_requested=True, verdict=f"stopped by {e.who}", exit_code=130)
    if not state.epoch and not state.policy.observe:  # no operator has begun, so none has ordered a submission
        return inc.over(state, e.at, Phase.STOPPED, state.verdict + job.NEVER, 130)
    if not state.job.id:
        return job.cancel_submission(state, e.at)
    if state.restarting:  # wait for its end: an interrupted restart could leave a job that lives on
        return state.in_phase(Phase.STOPPING, e.at), ()
    return job.cancel(replace(inc.close(state, e.at, "interrupted"), pending=()), e.at)


def _lift_requested(state: State, e: ev.LiftRequested) -> Step:
    """Such an exclusion ends at once: a waiting job is patched; otherwise the next restart drops it as expired."""
    known = state.isolation
    if e.request in known.lifts:
        return state, ()
    state = replace(state, isolation=replace(known, lifts=(*known.lifts, e.request)))
    lifted = tuple(x.node for x in known.exclusions if x.node in e.nodes)
    result = f"{', '.join(lifted)} may be used again" if lifted else "no node of the request was excluded"
    state = state.requested(e.at, "lift", e.who, e.request, result)
    if not lifted:
        return state, ()
    state = state.mark(e.at, "lifted", f"{', '.join(lifted)} lifted by {e.who}")
    if state.waiting:
        return job.patch(state, drop=lifted)
    return replace(state, isolation=state.isolation.expiring(lifted, e.at)), ()


def _requeue_requested(state: State, e: ev.RequeueRequested) -> Step:
    if state.heard(e.request):
        return state, ()
    refused = inc.requeue_refused(state)
    state = state.requested(e.at, "requeue", e.who, e.request, refused or "the job is being requeued")
    return (state, ()) if refused else inc.requeue(state, e.at, e.who)


def _resume_requested(state: State, e: ev.ResumeRequested) -> Step:
    if state.heard(e.request):
        return state, ()
    held = state.phase is Phase.HELD
    result = "the job is being released" if held else f"nothing to resume: the run is {state.phase.value}"
    state = state.requested(e.at, "resume", e.who, e.request, result)
    return order(state, Release(f"release/{state.attempt}/{e.request}", state.job.id)) if held else (state, ())


def _resumed(state: State, e: ev.Resumed) -> Step:
    """A person continues a run that is over, as the same run in a new job.

    What the run knows of its training, nodes and incidents stays; its budgets begin again.
    """
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
        progress=state.progress.new_start().charged() if e.back_to < 0 else state.progress.back_to(e.back_to),
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


def _files_restored(state: State, e: ev.FilesRestored) -> Step:
    words = f"{', '.join(e.files)} deleted by somebody else (a purge of old files?), and written again"
    return state.requested(e.at, "restored", "the operator", result=words), ()


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], Step]] = {
    ev.Started: _started,
    ev.Tick: _tick,
    ev.Submitted: answers.submitted,
    ev.SubmissionAnswered: answers.submission_answered,
    ev.JobSeen: job.seen,
    ev.JobGone: job.gone,
    ev.SlurmLost: _slurm_lost,
    ev.SlurmBack: _slurm_back,
    ev.LaunchSeen: _launch_seen,
    ev.RecoverySeen: _recovery_seen,
    ev.JobStepDone: _job_step_done,
    ev.OutcomeSeen: _outcome_seen,
    ev.NodeSilent: _node_silent,
    ev.NodeBack: observing.node_back,  # else the probes decide; a node that came back answers them
    ev.Stalled: _stalled,
    ev.StallEnded: _stall_ended,
    ev.StepSeen: _step_seen,
    ev.CheckpointSeen: _checkpoint_seen,
    ev.SavesSeen: _saves_seen,
    ev.Examined: answers.examined,
    ev.Probed: answers.probed,
    ev.Isolated: answers.isolated,
    ev.Restarted: answers.restarted,
    ev.Acted: answers.acted,
    ev.ActionFailed: answers.action_failed,
    ev.Withheld: observing.withheld,
    ev.StopRequested: _stop_requested,
    ev.LiftRequested: _lift_requested,
    ev.RequeueRequested: _requeue_requested,
    ev.ResumeRequested: _resume_requested,
    ev.Resumed: _resumed,
    ev.FilesRestored: _files_restored,
}
