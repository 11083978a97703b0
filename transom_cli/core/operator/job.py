"""What Slurm reports about our job: seen, pending, requeued by Slurm, ended, forgotten. Pure.

A report about another job, or about an earlier start of ours, changes nothing. While a restart is under way, only the
answer to that restart counts.
"""

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.incident import Sign, Stage
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator import isolation, observing
from transom_cli.core.operator.actions import Cancel, Patch, Release
from transom_cli.core.operator.state import Exclusion, Job, Phase, State, Step, both, order, withdraw_patches
from transom_cli.plural import several

FINISH = "finish/"
UNSUBMITTED = "cancel/submission"
NOTHING_SUBMITTED = "nothing was submitted"  # the answer to `cancel_submission`, if Slurm has no job of the run
NEVER = "; its job was never submitted"
_LOST = "lost when Slurm requeued the job"
FINISHING = 90.0  # seconds from the end of the training to that of the job, before Slurm is assumed to have missed it
FORGETTING = 30.0  # seconds for the nodes to report to a slurmctld that was restarted
SHRINK_WAIT = 60.0  # and in which one starts that may shrink, if there are as many nodes as without excluded ones
SPARES_WAIT = 5.0  # seconds in which a restarted job starts if there are nodes for its spares too
# Slurm's reasons for a job that waits for its release after a submission of ours, or a restart.
_OUR_HOLDS = ("JobHeldUser", "job_requeued_in_held_state")
_HOLDS = {
    "JobHeldUser": "the job is held in Slurm, not by transom",
    "JobHeldAdmin": "an administrator holds the job in Slurm",
    "job_requeued_in_held_state": "the job was requeued and held in Slurm, not by transom",
}
_LAUNCH_FAILURE = "JobLaunchFailure"
_LAST_SIGNAL = 31  # of a kernel or a person; Slurm's own 53 means that there was no log, or no folder
# Slurm's reasons for a pending job that can never start with these exclusions.
_IMPOSSIBLE = (
    *("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit", "Requested node configuration"),
    "Nodes_required_for_job_are_DOWN",
)
_UNFIT = "BadConstraints"  # it sets the priority to 0, as a hold does, until the exclusions are changed


def succeeds(state: State, e: ev.JobSeen) -> bool:
    """The launcher, without an operator, has submitted this job in place of ours. A replaced job never comes back."""
    replaced = {i.job_id for i in (*state.incidents, state.incident) if i is not None}
    return bool(state.job.id) and e.succeeds == state.job.id and e.job_id not in {state.job.id, *replaced}


def seen(state: State, e: ev.JobSeen) -> Step:
    follows = succeeds(state, e)
    ours = follows or (e.job_id == state.job.id and e.restarts >= state.job.restarts)
    if not ours:
        return state, ()
    if e.state == "UNKNOWN":  # Slurm may say only that it is completing
        completing = e.completing and not follows and e.restarts == state.job.restarts
        return replace(state, job=replace(state.job, completing=completing)), ()
    state = replace(state, slurm_error="")
    if state.restarting:
        return state, ()
    if state.phase is Phase.STOPPING:
        return _seen_stopping(state, e)
    if follows or e.restarts > state.job.restarts:
        return requeued_by_others(state, e)
    before = state.job
    state = replace(state, job=_updated(before, e))
    if e.ended:
        return _ended(state, e)
    was_suspended = e.suspended_at not in ("", before.suspended_at)  # and may have been resumed since
    if e.state == "SUSPENDED" or (e.state == "RUNNING" and was_suspended):
        state = inc.suspended(state, e.at)
    if e.state == "PENDING":
        return _pending(state, e)
    return (_running(state, e, before), ()) if e.state == "RUNNING" else (state, ())


def _updated(job: Job, e: ev.JobSeen) -> Job:
    leaving = e.completing and set(e.nodes) <= set(job.nodes)  # a completing job gives its nodes up one by one
    rolled_back = job.state == "RUNNING" and e.state == "PENDING"  # of one and the same start
    return replace(
        job,
        state=e.state,
        reason=e.reason,
        nodes=e.nodes if e.nodes and not leaving else job.nodes,
        batch_host=e.batch_host or job.batch_host,
        suspended_at=e.suspended_at or job.suspended_at,
        completing=e.completing,
        rolled_back=job.attempt if rolled_back else job.rolled_back,
    )


def _running(state: State, e: ev.JobSeen, before: Job) -> State:
    since = before.running_since if before.running_since is not None else e.at
    state = replace(state, job=replace(state.job, unheld=state.attempt, rolled_back="", running_since=since))
    if before.state != "RUNNING" and state.incident is not None and state.starting:
        state = state.mark(e.at, "running", f"job runs on {several(len(e.nodes), 'node')}")
    if state.phase in (Phase.PENDING, Phase.HELD, Phase.SUBMITTING):
        waiting = Phase.RECOVERING if state.incident else Phase.STARTING
        phase = Phase.TRAINING if state.progress.step >= 0 else waiting
        state = replace(state.in_phase(phase, e.at), verdict="")
    return state


def _seen_stopping(state: State, e: ev.JobSeen) -> Step:
    again = succeeds(state, e) or e.restarts > state.job.restarts
    state = state.in_attempt(e.job_id, e.restarts)
    state = replace(state, job=replace(state.job, state=e.state, reason=e.reason))
    if e.ended:
        return inc.over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    return cancel(state, e.at) if again else (state, ())  # Slurm requeued what we are stopping


def held_words(why: str) -> str:
    return f"held by its launcher: {why}"


def _pending(state: State, e: ev.JobSeen) -> Step:
    suspected = state.isolation.suspected
    unfit = e.reason.startswith(_UNFIT)
    if unfit and any(isinstance(a, Patch) for a in state.pending):
        return state, ()  # about exclusions that are being changed
    if e.held and not (unfit and suspected):
        verdict = held_words(e.held_why) if e.held_why else _held_by_slurm(state, e)
        if state.phase is Phase.HELD and state.verdict == verdict:
            return state, ()
        state = replace(state.in_phase(Phase.HELD, e.at), verdict=verdict)
        if e.held_why:
            state = replace(state, job=replace(state.job, unheld=""))
        words = e.reason.lower().replace("_", " ")
        by_slurm = _launch_failed(e) or "maxrequeue" in words or "max requeue" in words
        return release(state) if state.policy.release_held and by_slurm else (state, ())
    state = replace(state, job=replace(state.job, unheld=""))
    if state.phase in (Phase.STARTING, Phase.TRAINING, Phase.HELD):
        state = replace(state.in_phase(Phase.PENDING, e.at), verdict="")
    if suspected and e.reason.startswith(_IMPOSSIBLE):
        words = f"{', '.join(suspected)} kept away: without these Slurm finds no nodes for the job ({e.reason})"
        return patch(state.mark(e.at, "refused", words), drop=suspected)
    return state, ()


def _held_by_slurm(state: State, e: ev.JobSeen) -> str:
    if e.reason.startswith(_UNFIT) and state.isolation.excluded:
        return f"Slurm finds no nodes for the job but those that are kept away: {', '.join(state.isolation.excluded)}"
    if e.reason in _HOLDS:
        return f"{_HOLDS[e.reason]} ({e.reason})"
    return f"Slurm holds the job: {e.reason or 'held'}"


def _launch_failed(e: ev.JobSeen) -> bool:
    """Slurm could not start the job again, and holds it for that. A person's hold has other words."""
    return "launch failed" in e.reason.lower().replace("_", " ")


def release(state: State, at: float = 0.0) -> Step:
    """Release the job, once per start: the operator does not compete with another owner of the hold."""
    if state.job.released == state.attempt:
        return state, ()
    state = replace(state, job=replace(state.job, released=state.attempt))
    return order(state, Release(f"release/{state.attempt}", state.job.id))


def release_at(state: State) -> float | None:
    """When a job that Slurm holds again by mistake is released.

    A slurmctld that died before it recorded our release, or the job's start, holds the job again. Nobody else can hold
    it: a running job is not held, and nobody is that quick after us. The old start may still run; Slurm ends it when
    its nodes report, and refuses a new start until then.
    """
    forgotten = state.job.unheld == state.attempt and state.job.reason in _OUR_HOLDS
    if state.phase is not Phase.HELD or not forgotten or state.job.released == state.attempt:
        return None
    return state.since + FORGETTING


def patch(state: State, *, drop: tuple[str, ...] = (), start: bool = False) -> Step:
    """Update the exclusions of the waiting job. start: let it start at once, as a pending patch may ask already."""
    start = start or any(isinstance(a, Patch) and a.start for a in state.pending)
    number = state.patches + 1
    state, let_in = withdraw_patches(replace(state, isolation=state.isolation.without(drop), patches=number))
    drop = tuple(dict.fromkeys((*let_in, *drop)))
    return order(state, Patch(f"patch/{number}", state.job.id, state.isolation.excluded, drop, start, _enough(state)))


def _enough(state: State) -> int:
    """The number of nodes that the waiting job is to request, if it is to do with fewer; 0: unchanged."""
    request = state.request
    if request.waived != state.attempt:
        return 0
    if not request.fewest or request.shrunk == state.attempt:
        return request.least
    return max(request.least, request.num_nodes - len(state.isolation.excluded))


def expiry_at(state: State) -> float | None:
    """When the next exclusion expires, if the job waits. In any other state the next restart drops it."""
    if not state.waiting or state.phase is Phase.FINISHING:
        return None
    return min((x.until for x in state.isolation.exclusions if x.until is not None), default=None)


def expire(state: State, at: float) -> Step:
    return patch(state, drop=state.isolation.expired(at))


def waive_at(state: State) -> float | None:
    """When a restart no longer waits for spares: training without a spare is better than waiting with one.

    A run that may shrink first does without the nodes that are excluded, then with its fewest.
    """
    request, wait = state.request, SPARES_WAIT
    if request.waived == state.attempt:
        if not request.fewest or request.shrunk == state.attempt or _enough(state) == request.least:
            return None
        wait = SHRINK_WAIT
    if request.least >= request.num_nodes or not state.job.starts:
        return None
    return state.since + wait if state.waiting and state.phase is Phase.RECOVERING else None


def waive_spares(state: State, at: float) -> Step:
    request, attempt = state.request, state.attempt
    if request.waived == attempt:
        return patch(replace(state, request=replace(request, shrunk=attempt)))
    return patch(replace(state, request=replace(request, waived=attempt)))


def requeued_by_others(state: State, e: ev.JobSeen) -> Step:
    """Slurm (a node failure, preemption, an administrator) or the launcher, without an operator, restarted the job.

    The job then avoids nodes that are known to be bad: those that failed their probes, and those that Slurm itself
    calls down. A silence is not enough, since a requeue makes every node silent.
    """
    known = state.incident.dead if state.incident else ()
    # A slurmctld that forgot a start repeats it beside what still runs of it: that fails, and it holds the job.
    forgotten = e.held and _launch_failed(e) and state.job.rolled_back == state.attempt
    by, whose = ("its launcher", "its launcher") if _by_launcher(e) else ("Slurm", "Slurm, not by transom")
    seen_words = _requeued_words(e)
    if observing.by_hand(state, e):
        by, whose = "hand", "hand, not by transom"
        seen_words = f"the job was requeued by hand (restart {e.restarts})"
    if _silenced_by_requeue(state, e):
        state = inc.forget(state)
    else:
        state = inc.close(state.mark(e.at, "requeued", f"by {whose}"), e.at, f"requeued by {by}")
    incident = state.new_incident(e.at, Stage.STARTING).marked(e.at, "seen", seen_words)
    lost = dict.fromkeys((*known, *e.lost_nodes))
    bad = tuple(n for n in lost if n in state.job.nodes and n not in state.isolation.excluded)
    kept, spared = _kept_away(state, bad if e.state == "PENDING" else (), known, e.at)
    if spared:
        incident = incident.marked(e.at, "capped", spared)
    if kept:
        incident = incident.marked(e.at, "isolated", f"{', '.join(kept)} excluded")
    state = replace(state, incident=incident).in_phase(Phase.RECOVERING, e.at).in_attempt(e.job_id, e.restarts)
    if kept:
        until = {n: e.at + isolation.lasting(state, e.at, n)[0] for n in kept}
        new = (Exclusion(n, e.at, until[n], "excluded", incident.id, _LOST, "node_lost") for n in kept)
        state = isolation.count(replace(state, isolation=state.isolation.excluding(*new)), e.at, len(kept))
    rush = not e.held and not spared  # on nodes that were called down, parts of the old start may be alive
    step: Step = patch(state, start=rush) if e.state == "PENDING" and (kept or rush) else (state, ())
    step = both(step, seen(step[0], e))
    return both(step, release(step[0])) if forgotten else step


def _silenced_by_requeue(state: State, e: ev.JobSeen) -> bool:
    """Whether the open incident is only the silence of nodes whose ranks the requeue ended."""
    incident = state.incident
    if incident is None or incident.stage is not Stage.EXAMINING or not incident.silence_only or incident.stall:
        return False
    return not incident.faults and not _by_launcher(e) and not set(incident.silent_nodes) & set(e.lost_nodes)


def _kept_away(state: State, bad: tuple[str, ...], known: tuple[str, ...], at: float) -> tuple[tuple[str, ...], str]:
    """Return which of the nodes that Slurm calls down are excluded, and why the others are not.

    If all nodes of a job are down at once, or more than the cap, the reason is a switch, a slurmctld that has no news
    from them yet, or an administrator at work. Then only nodes that failed their own probes are excluded.
    """
    room = isolation.room(state, at)
    whole = len(state.job.nodes) > 1 and set(bad) >= set(state.job.nodes)
    if not whole and len(bad) <= room:
        return bad, ""
    kept = tuple(n for n in bad if n in known)[:room]
    left = ", ".join(n for n in bad if n not in kept)
    why = isolation.WHOLE if whole else "the cap is reached"
    return kept, f"{left} not excluded: {why}" if left else ""


def _by_launcher(e: ev.JobSeen) -> bool:
    return bool(e.succeeds or e.held_why or e.by_launcher)


def _requeued_words(e: ev.JobSeen) -> str:
    if not _by_launcher(e):
        return f"Slurm requeued the job without transom (restart {e.restarts}{', ' + e.reason if e.reason else ''})"
    did = [f"submitted job {e.job_id} in the place of job {e.succeeds}"] if e.succeeds else []
    did += [f"requeued it (restart {e.restarts})"] if e.by_launcher else []
    did += [f"held it: {e.held_why}"] if e.held_why else []
    return f"the job's launcher, without an operator, {' and '.join(did)}"


def finish_at(state: State) -> float | None:
    """When a finished run cancels its job: a slurmctld that died at the wrong moment keeps calling it RUNNING."""
    cancelling = any(a.key == f"{FINISH}{state.attempt}" for a in state.pending)
    return state.since + FINISHING if state.phase is Phase.FINISHING and not cancelling else None


def finish(state: State, at: float) -> Step:
    return order(state, Cancel(f"{FINISH}{state.attempt}", state.job.id))


def _ended(state: State, e: ev.JobSeen, by: str = "", credit: str = "") -> Step:
    """by: who cancelled it. credit: the source of the report, as text, if not Slurm's controller."""
    if e.state == "COMPLETED" or state.phase is Phase.FINISHING:  # the launcher reported that all ranks are done
        return inc.over(state, e.at, Phase.DONE, "", 0)
    if e.state == "CANCELLED":
        who = f" by {by}" if by else ""
        return inc.over(state, e.at, Phase.STOPPED, f"the job was cancelled in Slurm{who} (scancel){credit}", 130)
    if state.withholding:
        return observing.job_ended(state, e.at, e.state)
    if not state.starting and state.incident is not None and state.incident.ended:
        return state, ()
    words = f"the job ended: {e.state}" + (f", exit code {e.exit_code}" if e.exit_code is not None else "")
    if e.exit_signal and e.exit_signal <= _LAST_SIGNAL:  # Slurm says JobLaunchFailure of a killed script too
        words = f"the job ended: {e.state}, its batch script by signal {e.exit_signal}"
        state = replace(state, job=replace(state.job, reason="" if e.reason == _LAUNCH_FAILURE else e.reason))
    return inc.sign(state, Sign(e.at, words + credit, ended=e.state, exit_code=e.exit_code))


def gone(state: State, e: ev.JobGone) -> Step:
    if e.job_id != state.job.id:
        return state, ()
    state = replace(state, slurm_error="")
    if state.restarting:
        return state, ()
    if state.phase is Phase.STOPPING:
        return inc.over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    if state.phase is Phase.FINISHING:
        return inc.over(state, e.at, Phase.DONE, "", 0)
    if e.ended:
        end = ev.JobSeen(e.at, e.job_id, state.job.restarts, e.ended, exit_code=e.exit_code, exit_signal=e.exit_signal)
        credit = f", according to {e.source}" if e.source else ""
        state = replace(state, job=replace(state.job, state=e.ended, reason=""))
        return _ended(state, end, e.by, credit)
    if state.withholding:
        return observing.job_ended(state, e.at, "GONE")
    incident = state.incident
    given_up = incident is not None and incident.stage not in (Stage.EXAMINING, Stage.RELAUNCHING)
    if incident is not None and not state.starting and (incident.ended or given_up):
        return state, ()
    return inc.sign(state, Sign(e.at, "Slurm has forgotten the job", ended="GONE"))


def cancel(state: State, at: float) -> Step:
    return order(state.in_phase(Phase.STOPPING, at), Cancel(f"cancel/{state.attempt}", state.job.id))


def cancel_submission(state: State, at: float) -> Step:
    """End a run whose job is not known yet: submit no more, and cancel what was submitted."""
    return order(replace(state.in_phase(Phase.STOPPING, at), pending=()), Cancel(UNSUBMITTED, 0))
