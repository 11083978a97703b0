"""What the launcher does after an outcome that is to be followed by another attempt.

It keeps the allocation while a live operator renews its lease: the operator requeues the job out of it, since a job
that ends by itself with a dead node in it hangs in COMPLETING until SlurmdTimeout. Without an operator the launcher
gives the job back to Slurm by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir, attempt_name
from transom_cli.slurm.guards import backoff
from transom_cli.slurm.port import JobState, Slurm, SlurmRefused, SlurmUnknown, Submission, cluster_command
from transom_cli.slurm.successor import resubmit_own_job
from transom_cli.slurm.tags import has_hold_reason, held_comment, run_tag, successor_tag, tag_of
from transom_cli.supervise.handed import RECORD, Handed, newest_handed
from transom_cli.supervise.journal import fold
from transom_cli.supervise.launcher.journal import say
from transom_cli.supervise.launcher.plan import Allocation
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 20.0  # seconds without a renewed lease, on our clock
LINGER = 180.0  # at most this long for a live operator to requeue
UNKNOWN = 1800.0  # seconds for a Slurm that does not answer to come back, while the allocation is kept
REQUEUED = 60.0  # seconds for Slurm to end a job that was requeued


def await_operator(run: RunDir, told_to_leave: Callable[[], bool]) -> bool:
    """Whether there is no live operator. Returns too when Slurm wants the job to end, or after LINGER seconds."""
    began = seen_at = time.monotonic()
    seen = read_holder(run)
    while time.monotonic() - began < LINGER and not told_to_leave():
        holder = read_holder(run)
        if holder is None or holder.released:
            return True
        if seen is None or (holder.epoch, holder.renewals) != (seen.epoch, seen.renewals):
            seen, seen_at = holder, time.monotonic()
        if time.monotonic() - seen_at > OPERATOR_GONE:
            return True
        time.sleep(0.1)
    return False


def ended_by_slurm(job_id: int) -> bool:
    """Whether the job that is being ended reached its time limit, or was preempted; not when that is not known."""
    from transom_cli.bootstrap.slurm import launcher_slurm

    try:
        return launcher_slurm(timeout=10.0).job(job_id).state in (JobState.TIMEOUT, JobState.PREEMPTED)
    except TransomError:
        return False


@dataclass(frozen=True)
class NextAttempt:
    """What is to become of a job whose attempt has ended.

    again: requeue, or hold for a person, with `why`. resubmit: as a new job, also where a requeue would do.
    """

    again: str
    why: str = ""
    resubmit: bool = False

    @property
    def held(self) -> bool:
        return self.again == "hold"


def hand_off(
    run: RunDir,
    allocation: Allocation,
    wanted: NextAttempt,
    told_to_leave: Callable[[], bool],
    journal: Callable[..., None],
) -> str:
    """Give the job back to Slurm, tell the journal at once, and wait to be ended. Returns what was done, in words.

    A Slurm that does not answer is asked again, unless an operator is back, which then does it.
    """
    from transom_cli.bootstrap.slurm import launcher_slurm

    slurm = launcher_slurm()
    handed = _patiently(lambda: _hand_on(slurm, run, allocation, wanted), run, told_to_leave)
    if isinstance(handed, str):
        journal(RECORD, words=handed)
        return handed
    words = f"no operator lives: {_words(handed, allocation)}"
    journal(RECORD, how=handed.how, job_id=handed.job_id, restarts=handed.restarts, words=words)
    say(f"transom: {words}")
    if handed.how == "held":
        release = cluster_command(f"scontrol release {handed.job_id}", _cluster(run))
        say(f"transom: look with `transom explain {run.run_id}`, go on with `{release}`")
    if handed.job_id != allocation.job_id:
        _end(slurm, allocation.job_id)
    deadline = time.monotonic() + REQUEUED
    while time.monotonic() < deadline and not told_to_leave():
        time.sleep(0.1)
    return words


def _patiently(hand_on: Callable[[], Handed], run: RunDir, told_to_leave: Callable[[], bool]) -> Handed | str:
    """A slurmctld that restarts must not cost the run. Words, where the job was not given back."""
    deadline, tries = time.monotonic() + UNKNOWN, 0
    while True:
        try:
            return hand_on()
        except SlurmUnknown as error:
            tries += 1
            if told_to_leave() or time.monotonic() >= deadline:
                return f"the job could not be requeued, Slurm gives no answer: {error.why or error.what}"
            time.sleep(backoff(tries))
            if not await_operator(run, told_to_leave):
                return "the job is left to the operator, which is back"
        except TransomError as error:
            return f"the job could not be requeued: {error.what}: {error.why}" if error.why else error.what


def clear_hold(run: RunDir, allocation: Allocation) -> None:
    """A person has released the job that the launcher before this one held: its comment tells of it no longer."""
    from transom_cli.bootstrap.slurm import launcher_slurm

    handed = newest_handed(run, before=(allocation.job_id, allocation.restart))
    if handed is None or handed.how != "held":
        return
    try:
        slurm = launcher_slurm()
        job = slurm.job(allocation.job_id)
        if has_hold_reason(job.comment):
            slurm.set_comment(job.job_id, tag_of(job.comment))
    except TransomError as error:
        say(f"transom: the job's comment still tells of its hold: {error.why or error.what}")


def _hand_on(slurm: Slurm, run: RunDir, allocation: Allocation, wanted: NextAttempt) -> Handed:
    attempt, job_id = attempt_name(allocation.job_id, allocation.restart), allocation.job_id
    if not wanted.resubmit:
        if wanted.held:
            _tell_why(slurm, run, job_id, wanted.why)
        try:
            slurm.requeue_hold(job_id) if wanted.held else slurm.requeue(job_id)
            return Handed(attempt, "held" if wanted.held else "requeued", job_id, allocation.restart + 1)
        except SlurmRefused as error:  # a site that sets Requeue=0
            say(f"transom: the job could not be requeued, a new one takes its place: {error.why or error.what}")
    tag, width = successor_tag(run_tag(run.run_id), attempt), _width(run) or len(allocation.nodes)
    successor = resubmit_own_job(slurm, _submission(run), tag, job_id, width)
    if wanted.held and successor.held:
        _tell_why(slurm, run, successor.job_id, wanted.why)
        return Handed(attempt, "held", successor.job_id, 0)
    if successor.held:
        slurm.release(successor.job_id)
    return Handed(attempt, "resubmitted", successor.job_id, 0)


def _tell_why(slurm: Slurm, run: RunDir, job_id: int, why: str) -> None:
    """Where a person looks first: squeue. A site that does not let us is no reason not to hold the job."""
    try:
        slurm.set_comment(job_id, held_comment(slurm.job(job_id).comment, run_tag(run.run_id), why))
    except SlurmUnknown:
        raise
    except TransomError as error:
        say(f"transom: the job's comment could not be set to the reason: {error.why or error.what}")


def _submission(run: RunDir) -> Submission:
    from transom_cli.submit.submission import SubmissionRecord

    try:
        return SubmissionRecord.load(run).submission(run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransomError("The job cannot be submitted again", f"{run.submission}: {error}") from error


def _cluster(run: RunDir) -> str:
    """Of several, the one that whoever reads this must name; a compute node speaks to its own by itself."""
    from transom_cli.submit.submission import SubmissionRecord

    try:
        return SubmissionRecord.load(run).requested_cluster
    except TransomError:
        return ""


def _width(run: RunDir) -> int:
    """How many nodes the run asked for; the allocation may have lost some since."""
    try:
        return fold(run.journal).state.num_nodes
    except TransomError:
        return 0


def _words(handed: Handed, allocation: Allocation) -> str:
    if handed.job_id == allocation.job_id:
        return f"the job is {handed.how}"
    return f"job {handed.job_id} takes the place of this one" + (", held" if handed.how == "held" else "")


def _end(slurm: Slurm, job_id: int) -> None:
    """Or else Slurm might requeue it too. It ends in any case: its successor waits for that, and for no more."""
    try:
        slurm.cancel(job_id)
    except TransomError as error:
        say(f"transom: this job could not be cancelled, it ends by itself: {error.why or error.what}")
