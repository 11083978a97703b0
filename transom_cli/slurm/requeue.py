"""Bring a job to its next start with exclusions: one procedure, safe to repeat, and after a crash at any point.

Only this order of calls works (docs/architecture.md, "Requeue with exclusions"). Two facts explain the waiting:

- A job leaves COMPLETING only when all its nodes have answered. So the job is shrunk off a dead node first.
- slurmd rejects a new start of a job within the second in which the old start ended ("Job credential revoked"), and
  the attempt ends FAILED at once. Slurm's own delay of 121 s avoids this; SETTLE replaces that delay.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transom_cli.errors import TransomError
from transom_cli.ownership import user_name
from transom_cli.slurm.accounting import last_end, own_starts
from transom_cli.slurm.port import (
    Job,
    JobCancelled,
    JobState,
    NoSuchJob,
    Slurm,
    SlurmDenied,
    SlurmRefused,
    SlurmUnknown,
    Start,
    Submission,
)
from transom_cli.slurm.successor import exclusions, existing_nodes, find_successors, submit_recorded, submit_successor
from transom_cli.slurm.tags import has_hold_reason, is_other_runs, keep_comment, tag_of

log = logging.getLogger("transom.accounting")

POLL = 0.15  # seconds between two polls of a completing job
SETTLE = 1.5  # seconds between the end of the old start and the new one: 1 s, and room for clock differences
TREE, IN_VAIN = 8, 5.0  # nodes, seconds: see `_completing_is_stuck`
_HELD_BY_US = "job_requeued_in_held_state"  # Slurm's reason after requeuehold; `scontrol hold` leaves another


def end_from_accounting(slurm: Slurm, job_id: int, since: float, tag: str) -> Start | None:
    """Return how a job ended that slurmctld has forgotten (after MinJobAge).

    None if there is no accounting, if it does not answer, and if it knows of no end. Accounting is updated late, so
    only an end counts.

    since: when the run began, in seconds since the epoch. tag: the run's tag.
    """
    try:
        starts = slurm.history(job_id)
    except TransomError as error:
        log.info("no answer from accounting about job %s: %s", job_id, error.why or error.what)
        return None
    return last_end(own_starts(starts, since, tag))


@dataclass(frozen=True)
class RestartRequest:
    """What a restart must lead to. The same request may be carried out any number of times.

    Attributes:
        job_id, expect_restarts: the attempt that failed. A higher count means that the job was already requeued.
    """

    job_id: int
    expect_restarts: int
    exclude: tuple[str, ...]  # nodes to add to the job's exclusion list, whose other entries are kept
    dead: tuple[str, ...]  # nodes whose slurmd does not answer; the job is shrunk off them first
    num_nodes: int  # how many nodes the job requests (a shrink reduces it, so it is set again)
    tag: str  # the successor's comment, without spaces, unique to the run and the action
    submission: Submission  # how a successor is submitted; --exclude, --comment, --nodes and --hold are added
    # our exclusions that have expired, removed from the old list unless they are in `exclude`
    drop: tuple[str, ...] = ()
    # the job's --ntasks-per-node if its node count was changed before; 0: leave the tasks alone
    tasks_per_node: int = 0
    resubmit: bool = False  # submit a successor even if a requeue would do
    # job ID and restart count of a start that is held on purpose; only a person may release it
    held: tuple[int, int] | None = None
    # when the run began, in seconds since the epoch. If Slurm has forgotten the job, accounting is queried for a
    # cancellation by a person. None: accounting is not queried.
    since: float | None = None
    known: tuple[int, ...] = ()  # IDs that sbatch has returned for this run
    unanswered: int = 0  # how many submissions for this request had no answer


@dataclass(frozen=True)
class RestartResult:
    """The job that continues, and its restart count.

    how: "requeued", "successor" or "already". "already" means that Slurm, or this procedure before a crash, restarted
    the job. Exclusions are then set if the job is still pending, and are not if it runs.
    """

    job_id: int
    restarts: int
    how: str


def restart_job(
    slurm: Slurm,
    request: RestartRequest,
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    patience: float = 15.0,
    on_submitted: Callable[[int], None] = lambda job_id: None,
) -> RestartResult:
    """Bring the job to its next start, without the excluded nodes, exactly once.

    Args:
        patience: seconds on `clock` to wait for the end of COMPLETING. The wait is shorter if it would be in vain.
            Then a successor takes over.
        on_submitted: gets the ID of each submitted job, or 0 if sbatch gave no answer. The next request carries them
            (`known`, `unanswered`).

    Raises the port's errors. After SlurmUnknown, repeat the same request later: it continues from there.
    """
    now = clock()
    soon = min(patience, IN_VAIN) if _completing_is_stuck(request) else patience
    return _Restart(slurm, request, sleep, clock, now + patience, now + soon, on_submitted).run()


def _completing_is_stuck(request: RestartRequest) -> bool:
    """Return whether waiting for the end of COMPLETING would be in vain.

    The slurmstepds of a step report its end along a tree of width 7. From 8 nodes on, a living one waits 60 s for a
    dead one, even after the job was shrunk off it (REVERSE_TREE_WIDTH and REVERSE_TREE_CHILDREN_TIMEOUT in Slurm's
    source; measured with 22.05: 6 nodes are free after 5 s, but of 8 nodes the first one after 70 s).
    """
    return bool(request.dead) and request.num_nodes >= TREE


def _stuck_nodes(request: RestartRequest) -> int:
    """Return how many living nodes may wait for the dead one: those above it in the tree."""
    return math.ceil(math.log(request.num_nodes, TREE - 1)) if _completing_is_stuck(request) else 0


@dataclass(frozen=True)
class _Restart:
    slurm: Slurm
    request: RestartRequest
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    deadline: float  # for all waiting together, on `clock`
    requeued_by: float  # until when the job must be pending for a requeue to suffice
    on_submitted: Callable[[int], None]

    def run(self) -> RestartResult:
        request = self.request
        successors = self._successors()
        job: Job | None = None
        with contextlib.suppress(NoSuchJob):
            job = self.slurm.job(request.job_id)
        if job is None or is_other_runs(job.comment, request.tag):
            if not successors:
                self._require_uncancelled()
            return self._succeed(None, successors)
        if request.tag in job.comment.split():
            raise self._job_ids_reset((job,))
        if successors and not self._requeued_meanwhile(job, successors[0]):
            return self._succeed(job, successors)
        for extra in successors:
            self.slurm.cancel(extra.job_id)
        if job.restarts > request.expect_restarts:
            return self._already(job)
        if job.state is JobState.CANCELLED and not successors:
            # We cancel a job only when its successor exists. Someone else cancelled this one on purpose.
            raise JobCancelled(f"Job {job.job_id} was cancelled", "its state in Slurm is CANCELLED (scancel)")
        was_pending = job.state is JobState.PENDING
        if self._batch_host_is_dead(job) or (request.resubmit and not was_pending):
            return self._succeed(job, ())
        if not was_pending:
            self._shrink(job)
        with self._nodes_kept(job):
            result = self._requeue(job, was_pending)
        return result or self._succeed(job, ())

    def _requeue(self, job: Job, was_pending: bool) -> RestartResult | None:
        """Return None if the job cannot be requeued, or not be changed, and needs a successor."""
        if not was_pending:
            try:
                self.slurm.requeue_hold(job.job_id)
            except SlurmDenied:
                raise
            except SlurmRefused:  # Requeue=0, not a batch job, or forgotten since
                return None
        waiting = self._wait_pending()
        return self._start(waiting, "already" if was_pending else "requeued") if waiting else None

    @contextlib.contextmanager
    def _nodes_kept(self, job: Job) -> Iterator[None]:
        """Keep the good nodes of a running job between its end and its next start, if other jobs wait for nodes.

        A small job of ours waits for these nodes, takes them, and ends when the job may start. It ends by itself, too,
        and the restart does not depend on it.
        """
        avoided = {*self.request.dead, *self.request.exclude}
        good = [node for node in job.nodes if node not in avoided] if job.state is JobState.RUNNING else []
        keeper = 0
        with contextlib.suppress(TransomError):
            keeper = self.slurm.keep_nodes(job.job_id, good, keep_comment(self.request.tag))
        try:
            yield
        finally:
            if keeper:
                with contextlib.suppress(TransomError):
                    self.slurm.cancel(keeper)

    def _require_uncancelled(self) -> None:
        if self.request.since is None:
            return
        end = end_from_accounting(self.slurm, self.request.job_id, self.request.since, self.request.tag)
        if end is not None and end.state is JobState.CANCELLED:
            who = f" by {user_name(end.by)}" if end.by is not None else ""
            why = f"Slurm has forgotten the job, and accounting lists it as CANCELLED{who}"
            raise JobCancelled(f"Job {end.job_id} was cancelled", why)

    def _batch_host_is_dead(self, job: Job) -> bool:
        """Slurm allows no shrink off the batch host, so a requeue would never finish."""
        return job.batch_host in self.request.dead and (job.completing or not job.state.ended)

    def _shrink(self, job: Job) -> None:
        living = tuple(node for node in job.nodes if node not in self.request.dead)
        if job.state in (JobState.RUNNING, JobState.SUSPENDED) and living and living != job.nodes:
            # 22.05 without accounting allows one shrink per start, a site may allow none; patience decides then
            with contextlib.suppress(SlurmRefused, SlurmDenied):
                self.slurm.shrink(job.job_id, living)

    def _requeued_meanwhile(self, job: Job, successor: Job) -> bool:
        """Return whether Slurm requeued the job after a try that was interrupted while its successor was still held."""
        never_ran = successor.held or (successor.state is JobState.CANCELLED and not successor.nodes)
        able = not job.completing and job.state not in (JobState.CANCELLED, JobState.UNKNOWN)
        return never_ran and able and job.restarts > self.request.expect_restarts

    def _already(self, job: Job) -> RestartResult:
        if job.state is not JobState.PENDING:
            return RestartResult(job.job_id, job.restarts, "already")
        waiting = self._wait_pending()
        result = self._start(waiting, "already") if waiting else None
        return result or self._succeed(job, ())

    def _wait_pending(self) -> Job | None:
        """Return the job when its last start is completely gone, or None if that takes too long."""
        while True:
            try:
                job = self.slurm.job(self.request.job_id)
            except NoSuchJob:
                return None
            if not job.completing and job.state is not JobState.UNKNOWN:
                return job
            if self.clock() >= self.requeued_by:
                return None
            self.sleep(POLL)

    def _start(self, job: Job, how: str) -> RestartResult | None:
        """Let the pending job start without the excluded nodes, or return None if the site lets nobody change it."""
        if job.state is not JobState.PENDING:  # someone else released or ended it in the meantime
            if how == "requeued" and job.restarts <= self.request.expect_restarts and not job.state.ended:
                raise _state_lost(f"that it had requeued job {job.job_id}")
            return RestartResult(job.job_id, job.restarts, "already")
        not_ours = job.reason != _HELD_BY_US or self._held_on_purpose(job)  # held by a person or a failed prolog
        stays_held = job.held and how == "already" and not_ours
        refused: SlurmRefused | SlurmDenied | None = None
        try:
            self._set_exclusions(job)
        except (SlurmRefused, SlurmDenied) as error:
            refused, now = error, self.slurm.job(job.job_id)
            if not stays_held and now.state is JobState.PENDING and now.restarts == job.restarts:
                return None  # a successor has the exclusions from the start
        try:
            if refused is None and not stays_held:
                self._release(job)
        except SlurmDenied:
            raise
        except SlurmRefused as error:
            refused = error
        if self.slurm.job(job.job_id).restarts < job.restarts:
            raise _state_lost(f"that it had requeued job {job.job_id}") from refused
        if refused is not None:
            raise refused
        return RestartResult(job.job_id, job.restarts, how)

    def _set_exclusions(self, job: Job) -> None:
        exclude = self._exclusions(job)
        if set(exclude) != set(job.excluded) or job.num_nodes != self.request.num_nodes:
            count = self.request.num_nodes if job.num_nodes != self.request.num_nodes else None
            tasks = count * self.request.tasks_per_node if count is not None else 0
            self.slurm.update_pending(job.job_id, exclude=exclude, num_nodes=count, num_tasks=tasks or None)

    def _release(self, job: Job) -> None:
        self._clear_hold_reason(job)
        self.slurm.release(job.job_id)  # Slurm's own delay still keeps it from starting
        self.sleep(SETTLE)
        try:
            self.slurm.start_now(job.job_id)
        except (SlurmRefused, SlurmDenied) as error:  # the job is released, and starts after Slurm's own delay
            log.info("job %s starts after Slurm's delay, not at once: %s", job.job_id, error.why or error.what)

    def _held_on_purpose(self, job: Job) -> bool:
        return (job.job_id, job.restarts) == self.request.held

    def _clear_hold_reason(self, job: Job) -> None:
        """Remove the reason of a hold that is over from the comment. The job does not depend on it."""
        if has_hold_reason(job.comment):
            with contextlib.suppress(SlurmRefused, SlurmDenied):
                self.slurm.set_comment(job.job_id, tag_of(job.comment))

    def _exclusions(self, job: Job | None) -> tuple[str, ...]:
        return existing_nodes(self.slurm, exclusions(job, self.request.exclude, self.request.drop))

    def _successors(self) -> tuple[Job, ...]:
        request = self.request
        return find_successors(self.slurm, request.tag, request.job_id, request.submission.script, request.known)

    def _succeed(self, old: Job | None, successors: tuple[Job, ...]) -> RestartResult:
        """Submit a held successor, cancel the old job, release: at no time can both of them start."""
        exclude, found = self._exclusions(old), bool(successors)
        if not successors:
            request = self.request

            def submit() -> int:
                return submit_successor(self.slurm, request.submission, request.tag, request.num_nodes, exclude)

            submitted = submit_recorded(submit, self.on_submitted, request.unanswered)
            # A submission that seemed unanswered may have been accepted after all: that job is held and stays held.
            successors = self._successors() or (self.slurm.job(submitted),)
        successor = successors[0]
        if successor.job_id <= self.request.job_id:
            raise self._job_ids_reset(successors)
        for extra in successors[1:]:
            self.slurm.cancel(extra.job_id)
        if old is not None:  # an ID that Slurm does not know, or has given to another job, is not ours to cancel
            self.slurm.cancel(self.request.job_id)
        if successor.held and not self._held_on_purpose(successor):
            self._wait_living_free()
            try:
                if found:
                    self._add_exclusions(successor.job_id, exclude)
                self.slurm.release(successor.job_id)
            except NoSuchJob as error:
                raise _state_lost(f"job {successor.job_id}, which it had accepted") from error
        return RestartResult(successor.job_id, successor.restarts, "successor")

    def _add_exclusions(self, job_id: int, exclude: tuple[str, ...]) -> None:
        """Complete the exclusions of a successor whose submitter was interrupted, possibly before it set them."""
        excluded = self.slurm.job(job_id).excluded
        if not set(exclude) <= set(excluded):
            self.slurm.update_pending(job_id, exclude=tuple(dict.fromkeys((*excluded, *exclude))))

    def _job_ids_reset(self, successors: tuple[Job, ...]) -> SlurmRefused:
        """Attempts are identified and ordered by job ID. A reused ID would be mistaken for the old job, and a lower one
        for an older job."""
        for job in successors:
            self.slurm.cancel(job.job_id)
        after = f"job {successors[0].job_id} was to succeed job {self.request.job_id}"
        return SlurmRefused(
            "Slurm's job ID counter was reset",
            f"{after}: slurmctld seems to have lost its state; start a new run, which resumes from the checkpoints",
        )

    def _wait_living_free(self) -> None:
        """Wait until the old job holds no living node, except those that wait for a dead one.

        A release makes Slurm look for nodes once, immediately. The next look comes with its backfill interval (30 s);
        nodes that become free by themselves trigger none.
        """
        while self.clock() < self.deadline:
            try:
                old = self.slurm.job(self.request.job_id)
            except NoSuchJob:
                return
            living = set(old.nodes) - set(self.request.dead)
            if not old.completing or len(living) <= _stuck_nodes(self.request):
                return
            self.sleep(POLL)


def _state_lost(what: str) -> SlurmUnknown:
    """A slurmctld that was killed comes back with its last saved state, seconds old: everything is to be repeated."""
    why = "slurmctld seems to have restarted in the meantime"
    return SlurmUnknown(f"Slurm has forgotten {what}", why, "scontrol ping")
