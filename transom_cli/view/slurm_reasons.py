"""Slurm's reasons for pending jobs in plain words, and views updated with Slurm's answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from transom_cli.plural import several
from transom_cli.slurm.port import Job, JobState, Node
from transom_cli.slurm.tags import of_run, run_tag

if TYPE_CHECKING:
    from transom_cli.view.model import NextStep, RunView

# Names of limits have parts: whose limit (QOS, Assoc), for one or all jobs (Max, Grp, Min), of what (Cpu, Node, GRES,
# Jobs, ...), and per what (PerJob, PerUser, PerAccount, PerNode).
_LIMIT = re.compile(
    r"(QOS|Assoc(?:iation)?|)(Grp|Max|Min|)(.*?)(PerJob|PerUser|PerAccount|PerNode|)(?:Limit|NotSatisfied)?"
)
_LIMITED = (
    ("SubmitJob", "submitted jobs"),
    ("Job", "running jobs"),
    ("Minutes", "processor or node minutes"),
    ("Wall", "time"),
    ("Time", "time"),
    ("CPU", "processors"),
    ("NODE", "nodes"),
    ("GRES", "GPUs or other gres"),
    ("MEM", "memory"),
    ("LICENSE", "licences"),
    ("BILLING", "billing units"),
    ("BB", "burst buffer"),
    ("ENERGY", "energy"),
    ("RESOURCE", "resources"),
)
_ANSWERED = (
    "slurm_queried_at",
    "slurm_error",
    "slurm_silent_since",
    "slurm_state",
    "slurm_reason",
    "slurm_start",
    "jobs_ahead",
    "requirements",
    "switches",
    "starved",
    "to_lift",
)
FAR = 30 * 86400.0  # seconds: a later start is no estimate, but the end of a job without a time limit
_HELD = "held: it does not start until it is released"
_NO_RESERVATION = "held, because its reservation has ended or was deleted; if released, it starts outside of it"
_REASONS = {
    "Resources": "next in the queue, waiting for free nodes",
    "Priority": "other jobs have a higher priority",
    "BeginTime": "its start time has not come (Slurm delays a requeued job by about 2 minutes)",
    "Dependency": "waiting for another job to end",
    "DependencyNeverSatisfied": "its dependency can never be satisfied: it will not start",
    "Licenses": "waiting for a licence",
    "Reservation": "its reservation has not begun, or has ended",
    "ReservationDeleted": _NO_RESERVATION,
    "JobHeldUser": _HELD,
    "JobHeldAdmin": "held by an administrator: ask them to release it",
    "job_requeued_in_held_state": _HELD,
    "launch_failed_requeued_held": "held, because Slurm could not start it (a failed prolog, for example)",
    "JobHoldMaxRequeue": "held, because it was requeued as often as Slurm allows (MaxBatchRequeue)",
    "PartitionConfig": "its partition cannot satisfy the request (too few nodes, for example): it will not start",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is closed",
    "PartitionNodeLimit": "it requests more nodes than its partition allows: it will not start",
    "PartitionTimeLimit": "it requests more time than its partition allows: it will not start",
    "ReqNodeNotAvail": "required nodes are down, drained, or reserved for others",
    "Nodes_required_for_job_are_DOWN": "required nodes are down, drained, or reserved for others",
    "NodeDown": "a required node is down",
    "Cleaning": "Slurm is still cleaning up its last start",
    "InvalidAccount": "its account is not valid: it will not start",
    "InvalidQOS": "its QOS is not valid: it will not start",
    "QOSNotAllowed": "its QOS is not allowed there: it will not start",
    "AccountNotAllowed": "its account is not allowed there: it will not start",
    "QOSUsageThreshold": "its account has used more than its QOS allows for new jobs",
    "JobArrayTaskLimit": "the job array has reached its limit of running tasks",
    "AccountingPolicy": "a limit of its account is reached",
    "DeadLine": "it cannot end before its deadline: it will not start",
    "Prolog": "its prolog is running",
    "None": "Slurm has not considered it yet",
}


def limit_message(word: str) -> str:
    """Explain a reason that names a limit of a QOS or account; "" if it names none that is known here."""
    read = _LIMIT.fullmatch(word)
    if read is None or not (read[1] or (read[2] and read[4] == "PerAccount")):
        return ""
    prefix, kind, what, per = read.groups()
    whose = "QOS" if prefix in ("QOS", "") else "account"
    rest = what.upper()
    of = next((words for part, words in _LIMITED if part.upper() in rest), "")
    if not of:
        return f"a limit of your {whose} is reached"
    if kind == "Min":
        return f"it requests less {of} than your {whose} requires of a job: it will not start"
    if per == "PerNode" or per == "PerJob" or (of == "time" and kind == "Max"):
        one = "node" if per == "PerNode" else "job"
        return f"it requests more {of} than your {whose} allows per {one}: it will not start"
    if kind == "Grp":
        return f"all jobs of your {whose} together have reached its limit: {of}"
    jobs = "your account's jobs have" if per == "PerAccount" else "your jobs have"
    return f"{jobs} reached the limit of your {whose}: {of}"


def pending_reason(view: RunView) -> str:
    """Explain why the view's job is pending; "" if it is not, or if Slurm gives no reason."""
    if view.slurm_state != "PENDING" or not view.slurm_reason:
        return ""
    excluded = tuple(node for node, *_ in view.excluded)
    if view.jobs_ahead and view.slurm_reason == "Priority":
        are = "job of its partition has" if view.jobs_ahead == 1 else "jobs of its partition have"
        return f"{view.jobs_ahead:,} pending {are} a higher priority (Priority)"
    return reason_message(view.slurm_reason, view.requirements, excluded, view.switches)


def reason_message(reason: str, requirements: str = "", excluded: tuple[str, ...] = (), switches: str = "") -> str:
    """Explain Slurm's reason for a pending job; an unknown reason is returned as it is.

    Args:
        requirements: What the job requires of nodes, besides their number.
        excluded: Nodes that the run does not use.
        switches: The limit on switches and how long Slurm waits for it, as in 1@00:05:00.
    """
    word = reason.partition(",")[0].partition("(")[0].strip("_ ")
    if word == "BadConstraints":
        fitting = f"nodes with {requirements}" if requirements else "nodes that match its constraints"
        but = f" (excluded: {', '.join(excluded)})" if excluded else ""
        known = f"too few {fitting}{but}: it will not start"
    elif word == "Resources" and switches:
        number, _, wait = switches.partition("@")
        on = "one switch" if number == "1" else f"{number} switches"
        known = f"next in the queue, waiting for free nodes on {on}; after {wait} it accepts any switch"
    else:
        deleted = word.startswith("Reservation_") and word.endswith("_was_deleted")  # with the name in between
        known = _NO_RESERVATION if deleted else _REASONS.get(word) or limit_message(word)
    return f"{known} ({reason})" if known else reason.replace("_", " ")


def needs_query(view: RunView) -> bool:
    """Whether Slurm knows more than the run's files: a job's start time, its state if nobody writes, or that it lives.

    Not while Slurm does not respond to the run's own operator, so that users add no load.
    """
    if view.over or not view.job_id or (view.operator and view.slurm_lost):
        return False
    waits = view.phase in ("pending", "held") or view.slurm_state in ("", "PENDING")
    return waits or asks_in_passing(view) or not view.fresh


def asks_in_passing(view: RunView) -> bool:
    """Whether the operator knows what Slurm can say of the job, but may not have noticed yet that Slurm is silent."""
    return view.operator and view.phase == "training" and not view.slurm_lost


def needs_operator_query(view: RunView) -> bool:
    """Whether the job that shall become the run's operator may still be pending."""
    return bool(view.operator_job) and not view.over and not view.operator


def with_answer_of(view: RunView, known: RunView) -> RunView:
    """Add Slurm's answer from an earlier view of the same attempt."""
    names = (*_ANSWERED, "nodes") if waits(view) and known.slurm_state == "RUNNING" else _ANSWERED
    found = replace(view, **{name: getattr(known, name) for name in names})
    return replace(found, slurm_reason=known.slurm_reason or _same_reason(view, known.slurm_state))


def _same_reason(view: RunView, state: str) -> str:
    """Return the reason that the operator has seen: Slurm names none until it has considered the job."""
    return view.slurm_reason if view.slurm_state == state == "PENDING" else ""


def waits(view: RunView) -> bool:
    """Whether the operator has last seen the job in the queue. It asks Slurm once in one or two minutes."""
    waiting = view.phase in ("pending", "recovering") and view.slurm_state in ("", "PENDING")
    return waiting or (not view.slurm_state and not view.over)


def _started(step: NextStep) -> NextStep:
    """Correct what the operator, which asks Slurm less often, waits for."""
    return replace(step, message=step.message.replace("Slurm to start the job", "the launcher to start the ranks"))


def with_answer(view: RunView, job: Job, at: float | None = None) -> RunView:
    """Add Slurm's answer about the view's job, which it gave at `at` (None: now).

    A job that somebody has released is no longer held: the operator, which asks Slurm once in minutes, sees it later.
    """
    if job.comment and not of_run(job.comment, run_tag(view.run_id)):
        return with_error(view, f"job {view.job_id} there belongs to another run")
    state = "COMPLETING" if job.completing and job.state is JobState.UNKNOWN else job.state.value
    requirements = ", ".join(f"{flag} `{value}`" for flag, value in job.requirements if flag != "switches")
    at = view.now if at is None else at
    if view.phase == "held" and not job.held and job.state in (JobState.PENDING, JobState.RUNNING):
        view = replace(view, phase="pending", verdict="", since=at)
    view = replace(
        view,
        slurm_queried_at=at,
        slurm_state=state,
        slurm_reason=job.reason or _same_reason(view, state),
        slurm_start=None,
        jobs_ahead=job.ahead,
        requirements=requirements or view.requirements,
        switches=dict(job.requirements).get("switches", ""),
        nodes=job.nodes if waits(view) and job.state is JobState.RUNNING else view.nodes,
        next_steps=tuple(_started(one) if job.state is JobState.RUNNING else one for one in view.next_steps),
    )
    if job.state is not JobState.PENDING or not job.start:
        return view
    try:
        start = datetime.fromisoformat(job.start).timestamp()
    except ValueError:
        return view
    return replace(view, slurm_start=start if 0 < start - view.now < FAR else None)


def may_starve(view: RunView) -> bool:
    """Whether Slurm's reason may mean that too few nodes are usable. It is also given for nodes that are busy."""
    down = ("Nodes_required_for_job_are_DOWN", "ReqNodeNotAvail", "NodeDown", "PartitionConfig", "BadConstraints")
    return view.slurm_state == "PENDING" and view.requested_nodes > 0 and view.slurm_reason.startswith(down)


def with_starvation(view: RunView, nodes: Iterable[Node], isolated: Mapping[str, str]) -> RunView:
    """Add that the job cannot start, if fewer nodes of the cluster are usable than it needs.

    Args:
        isolated: run that isolated a node, by the node's name.
    """
    every = list(nodes)
    own = {node: how for node, how, _ in view.excluded}
    usable = [one for one in every if one.usable and one.name not in own]
    need = view.requested_nodes
    if len(usable) >= need:
        return view
    out = sorted(one.name for one in every if one not in usable and one.name in {**isolated, **own})
    named = [f"{n} ({'this run' if n in own or isolated[n] == view.run_id else f'run {isolated[n]}'})" for n in out]
    verb = "keeps away" if own and "drained" not in own.values() else "drained"
    by = f"; transom {verb} {', '.join(named)}" if named else ""
    words = f"needs {several(need, 'node')}; {len(usable)} of the cluster's {len(every)} are usable{by}"
    return replace(view, starved=words, to_lift=tuple(out))


def with_operator_job(view: RunView, job: Job) -> RunView:
    """Add Slurm's answer about the operator's job."""
    return replace(view, operator_state=job.state.value, operator_reason=job.reason)


def with_error(view: RunView, error: str, at: float | None = None, since: float | None = None) -> RunView:
    """Record that Slurm did not answer. at: when, if another process asked. since: when it began not to, if silent."""
    asked = view.now if at is None else at
    return replace(view, slurm_queried_at=asked, slurm_error=error, slurm_silent_since=view.slurm_silent_since or since)
