"""Slurm's account of our job: seen, pending, requeued behind our back, ended, forgotten. Pure.

What is told of another job, or of an earlier start of ours, changes nothing. While a restart is under way the job is in
the hands of that restart, and only its own answer counts.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator import isolation
from transom_cli.core.operator.actions import Cancel, Patch, Release
from transom_cli.core.operator.asking import Step, both, order, withdraw_patches
from transom_cli.core.operator.state import Exclusion, Phase, State
from transom_cli.plural import several

FINISH = "finish/"
UNSUBMITTED = "cancel/submission"
_LOST = "lost when Slurm requeued the job"
FINISHING = 90.0  # seconds from the end of the training to that of the job, before Slurm counts as having missed it
FORGETTING = 30.0  # seconds in which the nodes report to a slurmctld that was started again
SPARES_WAIT = 5.0  # seconds in which a restarted job would start if there were nodes for its spares too
# Slurm's words for a job that waits for its release after a submission of ours, or a restart.
_OUR_HOLDS = ("JobHeldUser", "job_requeued_in_held_state")
_HOLDS = {
    "JobHeldUser": "the job is held in Slurm, not by transom",
    "JobHeldAdmin": "an administrator holds the job in Slurm",
    "job_requeued_in_held_state": "the job was requeued and held in Slurm, not by transom",
}
_LAUNCH_FAILURE = "JobLaunchFailure"
_LAST_SIGNAL = 31  # of those that a kernel or a person sends; Slurm's own 53 tells that there was no log, or no folder
# Slurm's words for a pending job that can never start with these exclusions.
_IMPOSSIBLE = (
    *("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit", "Requested node configuration"),
    "Nodes_required_for_job_are_DOWN",
)
_UNFIT = "BadConstraints"  # it sets the priority to 0, as a hold does, until the exclusions are changed


def restarting(state: State) -> bool:
    return state.incident is not None and state.incident.stage is Stage.RESTARTING


def starting(state: State) -> bool:
    """The open incident, if any, is about an earlier attempt: what is seen now is news of the present one."""
    return state.incident is None or state.incident.stage is Stage.STARTING


def waiting(state: State) -> bool:
    """The job waits for its next start, and may be told of other exclusions."""
    return state.slurm_state == "PENDING" and starting(state) and state.phase is not Phase.STOPPING


def succeeds(state: State, e: ev.JobSeen) -> bool:
    """The launcher, alone, has submitted this job in the place of ours."""
    return bool(state.job_id) and e.succeeds == state.job_id != e.job_id


def seen(state: State, e: ev.JobSeen) -> Step:
    follows = succeeds(state, e)
    ours = follows or (e.job_id == state.job_id and e.restarts >= state.restarts)
    if not ours or e.state == "UNKNOWN":
        return state, ()
    state = replace(state, slurm_lost="")  # an answer is an answer, whoever waited for one
    if restarting(state):
        return state, ()
    if state.phase is Phase.STOPPING:
        return _seen_stopping(state, e)
    if follows or e.restarts > state.restarts:
        return requeued_behind(state, e)
    before = state.slurm_state
    if before == "RUNNING" and e.state == "PENDING":  # of one and the same start
        state = replace(state, rolled_back=state.attempt)
    leaving = e.completing and set(e.nodes) <= set(state.nodes)  # a completing job gives its nodes up one by one
    nodes = e.nodes if e.nodes and not leaving else state.nodes
    state = replace(state, slurm_state=e.state, slurm_reason=e.reason, nodes=nodes)
    state = replace(state, batch_host=e.batch_host or state.batch_host)
    was_suspended = e.suspended_at not in ("", state.suspended_at)  # and may have been resumed since
    state = replace(state, suspended_at=e.suspended_at or state.suspended_at)
    if e.ended:
        return _ended(state, e)
    if e.state == "SUSPENDED" or (e.state == "RUNNING" and was_suspended):
        state = inc.suspended(state, e.at)
    if e.state == "SUSPENDED":
        return state, ()
    if e.state == "PENDING":
        return _pending(state, e)
    if e.state == "RUNNING":
        running = state.running if state.running is not None else e.at
        state = replace(state, let_go=state.attempt, rolled_back="", running=running)
        if before != "RUNNING" and state.incident is not None and state.incident.stage is Stage.STARTING:
            incident = inc.mark(state.incident, e.at, "running", f"job runs on {several(len(e.nodes), 'node')}")
            state = replace(state, incident=incident)
        if state.phase in (Phase.PENDING, Phase.HELD, Phase.SUBMITTING):
            waiting = Phase.RECOVERING if state.incident else Phase.STARTING
            state = replace(state, phase=Phase.TRAINING if state.step >= 0 else waiting, since=e.at, verdict="")
    return state, ()


def _seen_stopping(state: State, e: ev.JobSeen) -> Step:
    again = succeeds(state, e) or e.restarts > state.restarts
    state = replace(inc.new_attempt(state, e.job_id, e.restarts), slurm_state=e.state, slurm_reason=e.reason)
    if e.ended:
        return over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    return cancel(state, e.at) if again else (state, ())  # Slurm requeued what we are stopping


def held_words(why: str) -> str:
    return f"held by its launcher: {why}"


def _pending(state: State, e: ev.JobSeen) -> Step:
    suspected = tuple(x.node for x in state.exclusions if x.until is not None)
    unfit = e.reason.startswith(_UNFIT)
    if unfit and any(isinstance(a, Patch) for a in state.pending):
        return state, ()  # said of exclusions that are being changed
    if e.held and not (unfit and suspected):
        verdict = held_words(e.held_why) if e.held_why else _held_by_slurm(state, e)
        if state.phase is Phase.HELD and state.verdict == verdict:
            return state, ()
        state = replace(state, phase=Phase.HELD, since=e.at, verdict=verdict)
        state = replace(state, let_go="" if e.held_why else state.let_go)
        words = e.reason.lower().replace("_", " ")
        by_slurm = _launch_failed(e) or "maxrequeue" in words or "max requeue" in words
        return release(state) if state.policy.release_held and by_slurm else (state, ())
    state = replace(state, let_go="")
    if state.phase in (Phase.STARTING, Phase.TRAINING, Phase.HELD):
        state = replace(state, phase=Phase.PENDING, since=e.at, verdict="")
    if suspected and e.reason.startswith(_IMPOSSIBLE):
        if state.incident is not None:
            words = f"{', '.join(suspected)} kept away: without these Slurm finds no nodes for the job ({e.reason})"
            state = replace(state, incident=inc.mark(state.incident, e.at, "refused", words))
        return patch(state, drop=suspected)
    return state, ()


def _held_by_slurm(state: State, e: ev.JobSeen) -> str:
    if e.reason.startswith(_UNFIT) and state.excluded:
        return f"Slurm finds no nodes for the job but those that are kept away: {', '.join(state.excluded)}"
    if e.reason in _HOLDS:
        return f"{_HOLDS[e.reason]} ({e.reason})"
    return f"Slurm holds the job: {e.reason or 'held'}"


def _launch_failed(e: ev.JobSeen) -> bool:
    """Slurm could not start the job again, and holds it for that. A person's hold has other words."""
    return "launch failed" in e.reason.lower().replace("_", " ")


def release(state: State) -> Step:
    """Once a start: no tug-of-war with whoever holds it."""
    if state.released == state.attempt:
        return state, ()
    state = replace(state, released=state.attempt)
    return order(state, Release(f"release/{state.attempt}", state.job_id))


def release_forgotten(state: State, at: float) -> Step:
    """A slurmctld that died before it wrote down that we released the job, or that it ran, holds it again.

    Nobody else can: what runs is not held, and nobody is as quick as that after us. It may run yet; Slurm ends it when
    its nodes report, and refuses a start before.
    """
    forgotten = state.let_go == state.attempt and state.slurm_reason in _OUR_HOLDS
    if state.phase is not Phase.HELD or not forgotten or at - state.since < FORGETTING:
        return state, ()
    return release(state)


def patch(state: State, *, drop: tuple[str, ...] = (), start: bool = False) -> Step:
    """Tell the waiting job which exclusions hold now, and let it `start` (also where a patch not yet done was to)."""
    start = start or any(isinstance(a, Patch) and a.start for a in state.pending)
    keep = tuple(x for x in state.exclusions if x.node not in drop)
    state, let_in = withdraw_patches(replace(state, exclusions=keep, patches=state.patches + 1))
    drop = tuple(dict.fromkeys((*let_in, *drop)))
    enough = state.num_nodes - state.spares if state.waived == state.attempt else 0
    return order(state, Patch(f"patch/{state.patches}", state.job_id, state.excluded, drop, start, enough))


def waive_spares(state: State, at: float) -> Step:
    """A restart does not wait for spares: what trains without one is better than what waits with one."""
    again = state.spares > 0 and state.starts > 0 and state.waived != state.attempt
    if not again or state.phase is not Phase.RECOVERING or at - state.since < SPARES_WAIT:
        return state, ()
    return patch(replace(state, waived=state.attempt))


def requeued_behind(state: State, e: ev.JobSeen) -> Step:
    """Slurm (a node failure, preemption, an admin) or the job's launcher, without an operator, gave it another start:
    keep it off the nodes we know to be bad.

    Bad are those that failed their probes, and those that Slurm itself calls down; a mere silence is not enough, as a
    requeue makes every node silent.
    """
    known = state.incident.dead if state.incident else ()
    # A slurmctld that forgot a start makes it again, beside what still runs of it: that fails, and it holds the job.
    forgotten = e.held and _launch_failed(e) and state.rolled_back == state.attempt
    if state.incident is not None:
        by, whose = ("its launcher", "its launcher") if _by_launcher(e) else ("Slurm", "Slurm, not by transom")
        state = replace(state, incident=inc.mark(state.incident, e.at, "requeued", f"by {whose}"))
        state = inc.close(state, e.at, f"requeued by {by}")
    name = f"i{len(state.incidents) + 1}"
    words = _behind_words(e)
    incident = Incident(name, state.job_id, state.restarts, e.at, state.step, stage=Stage.STARTING)
    incident = replace(incident, since_start=state.since_start)
    incident = inc.mark(incident, e.at, "seen", words)
    lost = dict.fromkeys((*known, *e.lost_nodes))
    bad = tuple(n for n in lost if n in state.nodes and n not in state.excluded) if e.state == "PENDING" else ()
    kept, spared = _kept_away(state, bad, known, e.at)
    if spared:
        incident = inc.mark(incident, e.at, "capped", spared)
    if kept:
        incident = inc.mark(incident, e.at, "isolated", f"{', '.join(kept)} excluded")
    state = replace(state, incident=incident, phase=Phase.RECOVERING, since=e.at)
    state = inc.new_attempt(state, e.job_id, e.restarts)
    step: Step = (state, ())
    if kept:
        until = e.at + state.policy.expiry
        new = tuple(Exclusion(n, e.at, until, "excluded", name, _LOST, "node_lost") for n in kept)
        state = isolation.count(replace(state, exclusions=(*state.exclusions, *new)), e.at, len(new))
        step = (state, ())
    rush = not e.held and not spared  # on nodes that were called down something of the old start may live
    if e.state == "PENDING" and (kept or rush):
        step = patch(state, start=rush)
    step = both(step, seen(step[0], e))
    return both(step, release(step[0])) if forgotten else step


def _kept_away(state: State, bad: tuple[str, ...], known: tuple[str, ...], at: float) -> tuple[tuple[str, ...], str]:
    """Of nodes that Slurm calls down, those that are excluded, and in words why others are not.

    All of a job's nodes at once are a switch, a slurmctld that has not heard of them yet, or an administrator at work:
    nothing tells which of them is bad, if one is. So with more than the cap; but what failed its probes did so itself.
    """
    room = isolation.room(state, at)
    whole = len(state.nodes) > 1 and set(bad) >= set(state.nodes)
    if not whole and len(bad) <= room:
        return bad, ""
    kept = tuple(n for n in bad if n in known)[:room]
    left = ", ".join(n for n in bad if n not in kept)
    why = "all of the job's nodes are down at once" if whole else "the cap is reached"
    return kept, f"{left} not excluded: {why}" if left else ""


def _by_launcher(e: ev.JobSeen) -> bool:
    return bool(e.succeeds or e.held_why or e.by_launcher)


def _behind_words(e: ev.JobSeen) -> str:
    if not _by_launcher(e):
        return f"Slurm requeued the job behind our back (restart {e.restarts}{', ' + e.reason if e.reason else ''})"
    did = [f"submitted job {e.job_id} in the place of job {e.succeeds}"] if e.succeeds else []
    did += [f"requeued it (restart {e.restarts})"] if e.by_launcher else []
    did += [f"held it: {e.held_why}"] if e.held_why else []
    return f"the job's launcher, without an operator, {' and '.join(did)}"


def finish(state: State, at: float) -> Step:
    """A slurmctld that died at the wrong moment goes on calling a job RUNNING whose batch script has long ended."""
    if at - state.since < FINISHING:
        return state, ()
    return order(state, Cancel(f"{FINISH}{state.attempt}", state.job_id))


def _ended(state: State, e: ev.JobSeen, by: str = "", told: str = "") -> Step:
    """by: who cancelled it. told: by whom that was told, where not by Slurm's controller."""
    if e.state == "COMPLETED" or state.phase is Phase.FINISHING:  # the launcher's word that all ranks are done stands
        return over(state, e.at, Phase.DONE, "", 0)
    if e.state == "CANCELLED":
        who = f" by {by}" if by else ""
        return over(state, e.at, Phase.STOPPED, f"the job was cancelled in Slurm{who} (scancel){told}", 130)
    if not starting(state) and state.incident is not None and state.incident.ended:
        return state, ()
    words = f"the job ended: {e.state}" + (f", exit code {e.exit_code}" if e.exit_code is not None else "")
    if e.exit_signal and e.exit_signal <= _LAST_SIGNAL:  # of a script that was killed Slurm says JobLaunchFailure too
        words = f"the job ended: {e.state}, its batch script by signal {e.exit_signal}"
        state = replace(state, slurm_reason="" if e.reason == _LAUNCH_FAILURE else e.reason)
    return inc.sign(state, e.at, words + told, ended=e.state, exit_code=e.exit_code)


def gone(state: State, e: ev.JobGone) -> Step:
    if e.job_id != state.job_id:
        return state, ()
    state = replace(state, slurm_lost="")
    if restarting(state):
        return state, ()
    if state.phase is Phase.STOPPING:
        return over(state, e.at, inc.final_phase(state), state.verdict, state.exit_code or 1)
    if state.phase is Phase.FINISHING:
        return over(state, e.at, Phase.DONE, "", 0)
    if e.ended:
        end = ev.JobSeen(e.at, e.job_id, state.restarts, e.ended, exit_code=e.exit_code, exit_signal=e.exit_signal)
        told = f", as {e.source} tells" if e.source else ""
        return _ended(replace(state, slurm_state=e.ended, slurm_reason=""), end, e.by, told)
    incident = state.incident
    given_up = incident is not None and incident.stage not in (Stage.EXAMINING, Stage.HEALING)
    if incident is not None and not starting(state) and (incident.ended or given_up):
        return state, ()
    return inc.sign(state, e.at, "Slurm has forgotten the job", ended="GONE")


def cancel(state: State, at: float) -> Step:
    state = replace(state, phase=Phase.STOPPING, since=at)
    return order(state, Cancel(f"cancel/{state.attempt}", state.job_id))


def cancel_submission(state: State, at: float) -> Step:
    """End a run whose job is not known yet: nothing is submitted any more, and what was submitted is cancelled."""
    state = replace(state, phase=Phase.STOPPING, since=at, pending=())
    return order(state, Cancel(UNSUBMITTED, 0))


def over(state: State, at: float, phase: Phase, verdict: str, exit_code: int) -> Step:
    state = inc.close(state, at, phase.value)
    return replace(state, phase=phase, since=at, verdict=verdict, exit_code=exit_code, pending=()), ()
