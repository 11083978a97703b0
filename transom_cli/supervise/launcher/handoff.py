"""Hands the job over after an outcome that another attempt is to follow.

While a live operator renews its lease, the launcher keeps the allocation, and the operator requeues the job: a job that
ends by itself with a dead node hangs in COMPLETING until SlurmdTimeout. Without an operator, the launcher requeues it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir, attempt_name
from transom_cli.slurm.guards import backoff
from transom_cli.slurm.port import JobState, Slurm, SlurmRefused, SlurmUnknown, Submission, cluster_command
from transom_cli.slurm.successor import resubmit_own_job
from transom_cli.slurm.tags import has_hold_reason, held_comment, run_tag, successor_tag, tag_of
from transom_cli.submit.submission import (
    NEW_RUN,
    SubmissionRecord,
)  # needed when a node is lost: imported before an upgrade
from transom_cli.supervise.handoff_record import RECORD, Handoff, newest_handoff
from transom_cli.supervise.journal import fold
from transom_cli.supervise.launcher.journal import say
from transom_cli.supervise.launcher.plan import Allocation
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 20.0  # seconds without a renewed lease, on this node's clock
LINGER = 180.0  # seconds for a live operator to requeue
UNKNOWN = 1800.0  # seconds for a Slurm that does not answer to come back, while the allocation is kept
REQUEUED = 60.0  # seconds for Slurm to end a job that was requeued


def await_operator(run: RunDir, ending: Callable[[], bool]) -> bool:
    """Wait for an operator to requeue the job, until Slurm ends it or LINGER seconds have passed.

    Returns:
        True as soon as no operator is alive.
    """
    began = seen_at = time.monotonic()
    seen = read_holder(run)
    while time.monotonic() - began < LINGER and not ending():
        holder = read_holder(run)
        if holder is None or holder.released:
            return True
        if seen is None or (holder.epoch, holder.renewals) != (seen.epoch, seen.renewals):
            seen, seen_at = holder, time.monotonic()
        if time.monotonic() - seen_at > OPERATOR_GONE:
            return True
        time.sleep(0.1)
    return False


def ended_by_slurm(slurm: Slurm, job_id: int) -> bool:
    """Whether the job reached its time limit or was preempted. False if unknown."""
    try:
        return slurm.job(job_id).state in (JobState.TIMEOUT, JobState.PREEMPTED)
    except TransomError:
        return False


@dataclass(frozen=True)
class NextAttempt:
    """How the job continues."""

    again: str  # "requeue", or "hold" for a person to look at, because of `why`
    why: str = ""
    resubmit: bool = False  # as a new job, even if a requeue would do

    @property
    def held(self) -> bool:
        return self.again == "hold"


def hand_off(
    slurm: Slurm,
    run: RunDir,
    allocation: Allocation,
    wanted: NextAttempt,
    ending: Callable[[], bool],
    journal: Callable[..., None],
) -> str:
    """Requeue or hold the job, journal it, and wait to be ended. If Slurm does not answer, try again.

    Returns:
        What was done, for a person.
    """
    handed = _retried(lambda: _hand_off(slurm, run, allocation, wanted), run, ending)
    if isinstance(handed, str):
        journal(RECORD, words=handed)
        return handed
    words = f"no operator lives: {_describe(handed, allocation)}"
    journal(RECORD, how=handed.how, job_id=handed.job_id, restarts=handed.restarts, words=words)
    say(f"transom: {words}")
    if handed.how == "held":
        release = cluster_command(f"scontrol release {handed.job_id}", _cluster(run))
        say(f"transom: look with `transom explain {run.run_id}`, continue with `{release}`")
    if handed.job_id != allocation.job_id:
        _end(slurm, allocation.job_id)
    deadline = time.monotonic() + REQUEUED
    while time.monotonic() < deadline and not ending():
        time.sleep(0.1)
    return words


def _retried(act: Callable[[], Handoff], run: RunDir, ending: Callable[[], bool]) -> Handoff | str:
    """Retry while slurmctld is away, unless an operator returns. Returns the reason if the job was not handed off."""
    deadline, tries = time.monotonic() + UNKNOWN, 0
    while True:
        try:
            return act()
        except SlurmUnknown as error:
            tries += 1
            if ending() or time.monotonic() >= deadline:
                return f"the job could not be requeued, Slurm gives no answer: {error.why or error.what}"
            time.sleep(backoff(tries))
            if not await_operator(run, ending):
                return "the operator is back and takes over the job"
        except TransomError as error:
            return f"the job could not be requeued: {error.what}: {error.why}" if error.why else error.what


def clear_hold(slurm: Slurm, run: RunDir, allocation: Allocation) -> None:
    """Remove the reason for a hold from the job's comment, since a person has released the job."""
    handed = newest_handoff(run, before=(allocation.job_id, allocation.restart))
    if handed is None or handed.how != "held":
        return
    try:
        job = slurm.job(allocation.job_id)
        if has_hold_reason(job.comment):
            slurm.set_comment(job.job_id, tag_of(job.comment))
    except TransomError as error:
        say(f"transom: the job's comment still tells of its hold: {error.why or error.what}")


def _hand_off(slurm: Slurm, run: RunDir, allocation: Allocation, wanted: NextAttempt) -> Handoff:
    attempt, job_id = attempt_name(allocation.job_id, allocation.restart), allocation.job_id
    if not wanted.resubmit:
        if wanted.held:
            _set_reason(slurm, run, job_id, wanted.why)
        try:
            slurm.requeue_hold(job_id) if wanted.held else slurm.requeue(job_id)
            return Handoff(attempt, "held" if wanted.held else "requeued", job_id, allocation.restart + 1)
        except SlurmRefused as error:  # a site that sets Requeue=0
            say(f"transom: the job could not be requeued, a new one takes its place: {error.why or error.what}")
    tag, width = successor_tag(run_tag(run.run_id), attempt), _width(run) or len(allocation.nodes)
    successor = resubmit_own_job(slurm, _submission(run), tag, job_id, width)
    if wanted.held and successor.held:
        _set_reason(slurm, run, successor.job_id, wanted.why)
        return Handoff(attempt, "held", successor.job_id, 0)
    if successor.held:
        slurm.release(successor.job_id)
    return Handoff(attempt, "resubmitted", successor.job_id, 0)


def _set_reason(slurm: Slurm, run: RunDir, job_id: int, why: str) -> None:
    """Put the reason into the job's comment, which squeue shows. Hold the job even if the site forbids that."""
    try:
        slurm.set_comment(job_id, held_comment(slurm.job(job_id).comment, run_tag(run.run_id), why))
    except SlurmUnknown:
        raise
    except TransomError as error:
        say(f"transom: the job's comment could not be set to the reason: {error.why or error.what}")


def _submission(run: RunDir) -> Submission:
    try:
        return SubmissionRecord.load(run).submission(run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransomError("The job cannot be submitted again", f"{run.submission}: {error}", NEW_RUN) from error


def _cluster(run: RunDir) -> str:
    """The cluster to name in a command for a person, if there are several."""
    try:
        return SubmissionRecord.load(run).requested_cluster
    except TransomError:
        return ""


def _width(run: RunDir) -> int:
    """The number of nodes that the run requested. The allocation may have lost some."""
    try:
        return fold(run.journal).state.request.num_nodes
    except TransomError:
        return 0


def _describe(handed: Handoff, allocation: Allocation) -> str:
    if handed.job_id == allocation.job_id:
        return f"the job is {handed.how}"
    return f"job {handed.job_id} takes the place of this one" + (", held" if handed.how == "held" else "")


def _end(slurm: Slurm, job_id: int) -> None:
    """Cancel the job, since Slurm might requeue it too. Its successor waits only for its end."""
    try:
        slurm.cancel(job_id)
    except TransomError as error:
        say(f"transom: this job could not be cancelled, it ends by itself: {error.why or error.what}")
