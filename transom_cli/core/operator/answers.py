"""The answers to the operator's actions: what came of a submission, a probe, an isolation, a restart.

An answer counts once, and only to an action that is pending. A failed action is an answer too.
"""

from dataclasses import replace

from transom_cli.core import events as ev
from transom_cli.core.diagnose import UNKNOWN
from transom_cli.core.operator import idle, job
from transom_cli.core.operator import incident as inc
from transom_cli.core.operator.actions import Action, Cancel, Isolate, Patch, Probe, ReadLogs, Release, Restart, Submit
from transom_cli.core.operator.state import Phase, State, Step, answered

_CANCELLED = "job_cancelled"  # the kind of the error by which Slurm refuses to continue such a job


def _pending(state: State, key: str, *kinds: type[Action]) -> Action | None:
    """The pending action that an answer is about."""
    return next((a for a in state.pending if a.key == key and isinstance(a, kinds)), None)


def _unheld(state: State) -> State:
    return replace(state, job=replace(state.job, unheld=state.attempt))


def submitted(state: State, e: ev.Submitted) -> Step:
    if _pending(state, e.key, Submit) is not None:
        state = answered(state, e.key)
    if state.job.id:
        return state, ()
    state = replace(state, job=replace(state.job, id=e.job_id, state="PENDING")).in_phase(Phase.PENDING, e.at)
    state = _unheld(state) if e.released else state
    if state.stop_requested:
        return job.cancel(state, e.at)
    return job.patch(state) if state.isolation.exclusions else (state, ())  # of a run that was resumed


def submission_answered(state: State, e: ev.SubmissionAnswered) -> Step:
    if e.number <= sum(key == e.key for key, _ in state.submissions):
        return state, ()
    state = replace(state, submissions=(*state.submissions, (e.key, e.job_id)))
    if e.job_id and not state.job.id and state.stop_requested:
        return submitted(state, ev.Submitted(e.at, e.key, e.job_id))
    return state, ()


def examined(state: State, e: ev.Examined) -> Step:
    if _pending(state, e.key, ReadLogs) is None:
        return state, ()
    state = answered(state, e.key)
    incident = state.incident
    if incident is not None and e.key.startswith(f"{incident.id}/"):
        if incident.outcome is not None and incident.outcome.cause == "hang":
            # what ranks print that the launcher ends is no cause
            e = replace(e, category="unknown", line="", last="")
        state = replace(state, incident=replace(incident, log_category=e.category, log_line=e.line))
        line = e.line or e.last
        state = state.mark(e.at, "examined", f"{e.where}: {line}") if line else state
    return inc.advance(state, e.at)


def probed(state: State, e: ev.Probed) -> Step:
    action = _pending(state, e.key, Probe)
    if not isinstance(action, Probe) or action.node != e.node:
        return state, ()
    count = idle.probed if e.key.startswith(idle.PREFIX) else inc.probed
    return count(answered(state, e.key), e.at, e.key, e.node, e.verdict, e.evidence)


def isolated(state: State, e: ev.Isolated) -> Step:
    action = _pending(state, e.key, Isolate)
    if not isinstance(action, Isolate) or action.node != e.node:
        return state, ()
    if e.key.startswith(idle.PREFIX):
        return idle.isolated(answered(state, e.key), e.at, e, action.reason)
    return inc.isolated(answered(state, e.key), e)


def restarted(state: State, e: ev.Restarted) -> Step:
    if _pending(state, e.key, Restart) is None:
        return state, ()
    state = answered(state, e.key)
    if state.phase is Phase.STOPPING:  # the run was stopped during the restart: cancel the new start
        return job.cancel(inc.close(state, e.at, "interrupted").in_attempt(e.job_id, e.restarts), e.at)
    state = inc.restarted(state, e.at, e.job_id, e.restarts, e.how)
    return state if e.how == "already" else _unheld(state), ()


def acted(state: State, e: ev.Acted) -> Step:
    if _pending(state, e.key, Cancel, Patch, Release) is None:
        return state, ()
    if state.phase is Phase.FINISHING and e.key.startswith(job.FINISH):
        return inc.over(state, e.at, Phase.DONE, "", 0)
    if e.key == job.UNSUBMITTED and not state.job.id:
        verdict = state.verdict + job.NEVER * (e.detail == job.NOTHING_SUBMITTED)
        return inc.over(state, e.at, inc.final_phase(state), verdict, state.exit_code or 1)
    return answered(state, e.key), ()


def action_failed(state: State, e: ev.ActionFailed) -> Step:
    """A failure is an answer too: a probe's result is then unknown, and a node that cannot be drained is excluded."""
    action = _pending(state, e.key, Action)
    if action is None:
        return state, ()
    if isinstance(action, Probe):
        return probed(state, ev.Probed(e.at, e.key, action.node, "UNKNOWN", e.error))
    if isinstance(action, ReadLogs):
        return examined(state, ev.Examined(e.at, e.key, "unknown", e.error, "the logs could not be read"))
    if isinstance(action, Isolate):
        return isolated(state, ev.Isolated(e.at, e.key, action.node, "excluded", e.error))
    state = answered(state, e.key)
    if state.phase is Phase.FINISHING and isinstance(action, Cancel):
        return inc.over(state, e.at, Phase.DONE, "", 0)  # the training is done, whatever Slurm still holds
    if isinstance(action, Submit):
        words = f"Cannot submit the job: {e.error}"
        return inc.over(state, e.at, inc.final_phase(state), words, state.exit_code or 1)
    if isinstance(action, Cancel):
        words = f"{state.verdict} (cancelling failed: {e.error})"
        return inc.over(state, e.at, inc.final_phase(state), words, UNKNOWN)  # the job may live on
    if isinstance(action, Restart) and state.phase is Phase.STOPPING:
        return job.cancel(inc.close(state, e.at, "interrupted"), e.at)
    if isinstance(action, Restart) and e.kind == _CANCELLED:
        return inc.over(state, e.at, Phase.STOPPED, e.error, 130)
    if isinstance(action, Restart):
        return inc.restart_refused(state, e.at, e.error)
    return state.mark(e.at, "refused", e.error), ()
