"""Bring a job to its next start with exclusions: one procedure, safe to do twice and after a crash at any point.

The order is the only one that works (docs/architecture.md, "Requeue with exclusion"). Two facts behind the
waiting: a job leaves COMPLETING only when all its nodes have answered, so a dead node is given up first; and a
slurmd refuses a job's new start as long as it lies in the same second as the end of the old one ("Job credential
revoked": the attempt ends FAILED at once), which is what Slurm's own delay of 121 s is for and SETTLE replaces.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from transom_cli.slurm.ending import accounted_end, user_name
from transom_cli.slurm.known import still_there
from transom_cli.slurm.port import (
    Job,
    JobCancelled,
    JobState,
    NoSuchJob,
    Slurm,
    SlurmDenied,
    SlurmRefused,
    SlurmUnknown,
    Submission,
)
from transom_cli.slurm.successor import exclusions, find_successors, submit_successor
from transom_cli.slurm.tags import is_anothers, says_held, tag_of

POLL = 0.15  # seconds between two looks at a job that is completing
SETTLE = 1.5  # seconds between the end of the old start and the new one: 1 s, and room for clocks that differ
TREE, IN_VAIN = 8, 5.0  # nodes, seconds: see `_waits_in_vain`
_HELD_BY_US = "job_requeued_in_held_state"  # Slurm's reason after requeuehold; `scontrol hold` leaves another


@dataclass(frozen=True)
class RestartRequest:
    """What a restart must lead to. The same request may be carried out any number of times.

    job_id, expect_restarts: the attempt that failed. A higher count means that the job was requeued already.
    exclude: nodes to add to the job's exclusion list, whose other entries are kept.
    dead: nodes whose slurmd does not answer; the job is shrunk off them first.
    num_nodes: how many nodes the job asks for (a shrink takes from it, so it is set again).
    tag: the comment of a successor, without spaces, unique to the run and the action.
    submission: how a successor is submitted; --exclude, --comment, --nodes and --hold are added.
    tasks_per_node: the job's --ntasks-per-node where its node count has been changed before; 0: leave the tasks alone.
    drop: exclusions of ours that have expired, removed from the old list unless they are in `exclude`.
    resubmit: by a successor also where a requeue would do.
    held: job id and restart count of a start that waits, held on purpose, for a person: it is theirs to release.
    since: when the run began, in seconds since the epoch: of a job that Slurm has forgotten accounting is asked whether
        a person cancelled it. None: it is not asked.
    """

    job_id: int
    expect_restarts: int
    exclude: tuple[str, ...]
    dead: tuple[str, ...]
    num_nodes: int
    tag: str
    submission: Submission
    drop: tuple[str, ...] = ()
    tasks_per_node: int = 0
    resubmit: bool = False
    held: tuple[int, int] | None = None
    since: float | None = None


@dataclass(frozen=True)
class RestartResult:
    """The job that goes on and its restart count. how: "requeued", "successor" or "already" (by Slurm, or by us
    before a crash; then exclusions are set if the job still waits, and are not if it runs)."""

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
) -> RestartResult:
    """Bring the job to its next start, without the excluded nodes, exactly once.

    `patience` (seconds on `clock`) bounds the waiting for COMPLETING to end, which is cut short where it would be in
    vain; then a successor takes over. Raises the port's errors. After SlurmUnknown do it again later, with the same
    request: it goes on where it was.
    """
    now = clock()
    soon = min(patience, IN_VAIN) if _waits_in_vain(request) else patience
    return _Restart(slurm, request, sleep, clock, now + patience, now + soon).run()


def _waits_in_vain(request: RestartRequest) -> bool:
    """Whether the end of COMPLETING would be waited for in vain.

    The slurmstepds of a step tell its end along a tree of width 7, so that from 8 nodes on a living one waits for a
    dead one, for 60 s and also after the job was shrunk off it (REVERSE_TREE_WIDTH and REVERSE_TREE_CHILDREN_TIMEOUT in
    Slurm's source; seen with 22.05: 6 nodes are free after 5 s, of 8 the first one after 70 s).
    """
    return bool(request.dead) and request.num_nodes >= TREE


def _waiting(request: RestartRequest) -> int:
    """How many living nodes may wait for the dead one: those above it in the tree."""
    return math.ceil(math.log(request.num_nodes, TREE - 1)) if _waits_in_vain(request) else 0


@dataclass(frozen=True)
class _Restart:
    slurm: Slurm
    request: RestartRequest
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    deadline: float  # for all waiting together, on `clock`
    requeued_by: float  # for the job to wait again, if a requeue is to do

    def run(self) -> RestartResult:
        request = self.request
        successors = self._successors()
        job: Job | None = None
        with contextlib.suppress(NoSuchJob):
            job = self.slurm.job(request.job_id)
        if job is None or is_anothers(job.comment, request.tag):
            if not successors:
                self._require_uncancelled()
            return self._succeed(None, successors)
        if request.tag in job.comment.split():
            raise self._counted_anew((job,))
        if successors and not self._goes_on(job, successors[0]):
            return self._succeed(job, successors)
        for extra in successors:
            self.slurm.cancel(extra.job_id)
        if job.restarts > request.expect_restarts:
            return self._already(job)
        if job.state is JobState.CANCELLED and not successors:
            # We cancel a job only once its successor is there: somebody else ended this one, and meant it.
            raise JobCancelled(f"Job {job.job_id} was cancelled", "its state in Slurm is CANCELLED (scancel)")
        was_pending = job.state is JobState.PENDING
        if self._stuck(job) or (request.resubmit and not was_pending):
            return self._succeed(job, ())
        if not was_pending:
            try:
                self._shrink(job)
                self.slurm.requeue_hold(job.job_id)
            except SlurmDenied:
                raise
            except SlurmRefused:  # Requeue=0, not a batch job, or forgotten since
                return self._succeed(job, ())
        waiting = self._wait_pending()
        if waiting is None:
            return self._succeed(job, ())
        return self._start(waiting, "already" if was_pending else "requeued")

    def _require_uncancelled(self) -> None:
        if self.request.since is None:
            return
        end = accounted_end(self.slurm, self.request.job_id, self.request.since, self.request.tag)
        if end is not None and end.state is JobState.CANCELLED:
            who = f" by {user_name(end.by)}" if end.by is not None else ""
            why = f"Slurm has forgotten it, and accounting has it as CANCELLED{who}"
            raise JobCancelled(f"Job {end.job_id} was cancelled", why)

    def _stuck(self, job: Job) -> bool:
        """Its batch host is dead: Slurm allows no shrink off that one, so a requeue would not end."""
        return job.batch_host in self.request.dead and (job.completing or not job.state.ended)

    def _shrink(self, job: Job) -> None:
        living = tuple(node for node in job.nodes if node not in self.request.dead)
        if job.state in (JobState.RUNNING, JobState.SUSPENDED) and living and living != job.nodes:
            try:
                self.slurm.shrink(job.job_id, living)
            except SlurmDenied:
                raise
            except SlurmRefused:
                return  # 22.05 without accounting allows one shrink a start; the wait's patience decides then

    def _goes_on(self, job: Job, successor: Job) -> bool:
        """A try was cut off before its successor, still held, took over; then Slurm itself requeued the job."""
        never_ran = successor.held or (successor.state is JobState.CANCELLED and not successor.nodes)
        able = not job.completing and job.state not in (JobState.CANCELLED, JobState.UNKNOWN)
        return never_ran and able and job.restarts > self.request.expect_restarts

    def _already(self, job: Job) -> RestartResult:
        if job.state is not JobState.PENDING:
            return RestartResult(job.job_id, job.restarts, "already")
        waiting = self._wait_pending()
        if waiting is None:
            return self._succeed(job, ())
        return self._start(waiting, "already")

    def _wait_pending(self) -> Job | None:
        """The job once it waits with nothing left of its last start; None when it cannot get there."""
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

    def _start(self, job: Job, how: str) -> RestartResult:
        if job.state is not JobState.PENDING:  # another hand released it, or ended it, since we looked
            return RestartResult(job.job_id, job.restarts, "already")
        refused = None
        try:
            self._let_go(job, how)
        except SlurmDenied:
            raise
        except SlurmRefused as error:
            refused = error
        if self.slurm.job(job.job_id).restarts < job.restarts:
            raise _forgotten(f"that it had requeued job {job.job_id}") from refused
        if refused is not None:
            raise refused
        return RestartResult(job.job_id, job.restarts, how)

    def _let_go(self, job: Job, how: str) -> None:
        exclude = self._exclusions(job)
        if set(exclude) != set(job.excluded) or job.num_nodes != self.request.num_nodes:
            count = self.request.num_nodes if job.num_nodes != self.request.num_nodes else None
            tasks = count * self.request.tasks_per_node if count is not None else 0
            self.slurm.update_pending(job.job_id, exclude=exclude, num_nodes=count, num_tasks=tasks or None)
        theirs = job.reason != _HELD_BY_US or self._on_purpose(job)  # a person's or a prolog's: not ours to release
        if job.held and how == "already" and theirs:
            return
        self._forget_hold(job)
        self.slurm.release(job.job_id)  # Slurm's own delay still keeps it from starting
        self.sleep(SETTLE)
        self.slurm.start_now(job.job_id)

    def _on_purpose(self, job: Job) -> bool:
        return (job.job_id, job.restarts) == self.request.held

    def _forget_hold(self, job: Job) -> None:
        """The words of a hold that is over; whether Slurm lets us does not matter to the job."""
        if says_held(job.comment):
            with contextlib.suppress(SlurmRefused, SlurmDenied):
                self.slurm.set_comment(job.job_id, tag_of(job.comment))

    def _exclusions(self, job: Job | None) -> tuple[str, ...]:
        return still_there(self.slurm, exclusions(job, self.request.exclude, self.request.drop))

    def _successors(self) -> tuple[Job, ...]:
        return find_successors(self.slurm, self.request.tag, self.request.job_id)

    def _succeed(self, old: Job | None, successors: tuple[Job, ...]) -> RestartResult:
        """Submit a successor held, cancel the old job, release: at no moment can both of them start."""
        exclude, found = self._exclusions(old), bool(successors)
        if not successors:
            request = self.request
            size = (request.num_nodes, exclude)
            submitted = submit_successor(self.slurm, request.submission, request.tag, *size)
            # A submission that we gave up waiting for may have been taken after all: it is held, and stays so.
            successors = self._successors() or (self.slurm.job(submitted),)
        successor = successors[0]
        if successor.job_id <= self.request.job_id:
            raise self._counted_anew(successors)
        for extra in successors[1:]:
            self.slurm.cancel(extra.job_id)
        if old is not None:  # a number that Slurm does not know, or has given to another job, is none of ours
            self.slurm.cancel(self.request.job_id)
        if successor.held and not self._on_purpose(successor):
            self._wait_living_free()
            try:
                if found:
                    self._keep_off(successor.job_id, exclude)
                self.slurm.release(successor.job_id)
            except NoSuchJob as error:
                raise _forgotten(f"job {successor.job_id}, which it had taken") from error
        return RestartResult(successor.job_id, successor.restarts, "successor")

    def _keep_off(self, job_id: int, exclude: tuple[str, ...]) -> None:
        """Of a successor that was submitted by a try which was cut off: before its exclusions were set, it may be."""
        excluded = self.slurm.job(job_id).excluded
        if not set(exclude) <= set(excluded):
            self.slurm.update_pending(job_id, exclude=tuple(dict.fromkeys((*excluded, *exclude))))

    def _counted_anew(self, successors: tuple[Job, ...]) -> SlurmRefused:
        """Attempts are told apart, and put in order, by the numbers of their jobs: one that comes again would be taken
        for the old one, and a lower one for an older one."""
        for job in successors:
            self.slurm.cancel(job.job_id)
        after = f"job {successors[0].job_id} was to follow on job {self.request.job_id}"
        return SlurmRefused(
            "Slurm counts its jobs anew",
            f"{after}: slurmctld has lost its state, it seems; a new run goes on from the checkpoints",
        )

    def _wait_living_free(self) -> None:
        """Until the old job holds no living node, but for those that wait for a dead one.

        A release makes Slurm look for nodes at once, but once. The next look comes with its backfill interval (30 s):
        nodes that come free by themselves cause none.
        """
        while self.clock() < self.deadline:
            try:
                old = self.slurm.job(self.request.job_id)
            except NoSuchJob:
                return
            living = set(old.nodes) - set(self.request.dead)
            if not old.completing or len(living) <= _waiting(self.request):
                return
            self.sleep(POLL)


def _forgotten(what: str) -> SlurmUnknown:
    """A slurmctld that was killed comes back with its last saved state, seconds old: all is to do again."""
    return SlurmUnknown(f"Slurm has forgotten {what}", "slurmctld was restarted meanwhile, it seems", "scontrol ping")
