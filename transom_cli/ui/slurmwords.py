"""What Slurm says of a job in plain words, and what a view becomes once it was asked. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from transom_cli.slurm.port import Job, JobState
from transom_cli.slurm.tags import of_run, run_tag
from transom_cli.ui.limitwords import limit_words
from transom_cli.ui.view import RunView

_HELD = "held: it starts only when it is released"
_REASONS = {
    "Resources": "it is next, and waits for nodes to become free",
    "Priority": "other jobs are before it",
    "BeginTime": "its start time has not come (Slurm delays a requeued job by about 2 minutes)",
    "Dependency": "it waits for another job to end",
    "DependencyNeverSatisfied": "it waits for a job that can never end as asked: it will not start",
    "Licenses": "it waits for a licence",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone: it will not start",
    "JobHeldUser": _HELD,
    "JobHeldAdmin": "held by an administrator: ask them to release it",
    "job_requeued_in_held_state": _HELD,
    "launch_failed_requeued_held": "Slurm could not start it (a prolog failed, say), and holds it",
    "JobHoldMaxRequeue": "requeued as often as Slurm allows (MaxBatchRequeue), and held",
    "PartitionConfig": "its partition does not have what it asks for (as many nodes, say): it will not start",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is closed",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows: it will not start",
    "PartitionTimeLimit": "it asks for more time than its partition allows: it will not start",
    "ReqNodeNotAvail": "nodes that it needs are down, drained, or reserved for others",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained, or reserved for others",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "its last start is still being cleaned up",
    "InvalidAccount": "its account is not valid: it will not start",
    "InvalidQOS": "its QOS is not valid: it will not start",
    "QOSNotAllowed": "its QOS may not be used there: it will not start",
    "AccountNotAllowed": "its account may not be used there: it will not start",
    "QOSUsageThreshold": "its account has used more than its QOS lets new jobs start with",
    "JobArrayTaskLimit": "as many elements of its array run as may",
    "AccountingPolicy": "a limit of its account is reached",
    "DeadLine": "it cannot end before its deadline: it will not start",
    "Prolog": "its prolog is running",
    "None": "Slurm has not looked at it yet",
}


def reason_words(reason: str, wants: str = "", kept: tuple[str, ...] = ()) -> str:
    """Slurm's reason for a pending job, in plain words; where that is not known, its own.

    wants: what the job asks of its nodes beyond their number, in words. kept: the nodes that the run keeps away.
    """
    word = reason.partition(",")[0].partition("(")[0].strip("_ ")
    if word == "BadConstraints":
        asked = f"with {wants}" if wants else "that fit what it asks for"
        away = f" but those that are kept away ({', '.join(kept)})" if kept else ""
        known = f"too few nodes {asked} are left{away}: it will not start"
    else:
        known = _REASONS.get(word) or limit_words(word)
    return f"{known} ({reason})" if known else reason.replace("_", " ")


def worth_asking(view: RunView) -> bool:
    """Whether Slurm knows more than what is written: when a job starts, or whether it lives where nobody writes.

    Not while it does not answer the run's own operator, which goes on asking: however many look on, it gets no more.
    """
    if view.over or not view.job_id or (view.operator and view.slurm_lost):
        return False
    return view.phase in ("pending", "held") or view.slurm_state == "PENDING" or not view.known


def with_answer(view: RunView, job: Job) -> RunView:
    """With what Slurm has just said of the view's job."""
    if job.comment and not of_run(job.comment, run_tag(view.run_id)):
        return with_error(view, f"job {view.job_id} is another run's there")
    state = "COMPLETING" if job.completing and job.state is JobState.UNKNOWN else job.state.value
    view = replace(view, slurm_asked=view.now, slurm_state=state, slurm_reason=job.reason, slurm_start=None)
    if job.state is not JobState.PENDING or not job.start:
        return view
    try:
        start = datetime.fromisoformat(job.start).timestamp()
    except ValueError:
        return view
    return replace(view, slurm_start=start if start > view.now else None)


def with_operator_job(view: RunView, job: Job) -> RunView:
    """With what Slurm has just said of the job that is to be the operator."""
    return replace(view, operator_state=job.state.value, operator_reason=job.reason)


def with_error(view: RunView, error: str, at: float | None = None) -> RunView:
    """Slurm was asked, and has not answered. at: when, if that was for another look."""
    return replace(view, slurm_asked=view.now if at is None else at, slurm_error=error)
