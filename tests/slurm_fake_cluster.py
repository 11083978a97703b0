"""A cluster in memory that behaves like Slurm 22.05 was measured to behave: the backend of `fake.FakeSlurm`.

Its time advances only in `advance`. A node runs one job at a time. The behaviour that matters to a supervisor: a job
with a dead node stays COMPLETING until SlurmdTimeout; a requeued job waits for its delay unless its StartTime is set to
now; a start within a second of the last end fails ("Job credential revoked"); a dead node is noticed late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from transom_cli.slurm.port import Job, JobState, SlurmRefused, Start, Submission

SLURMD_TIMEOUT = 300.0
REQUEUE_DELAY = 121.0
COMPLETE_TIME = 0.5
CREDENTIAL_GRAIN = 1.0
TREE, CHILDREN_TIMEOUT = 8, 60.0  # from this many nodes on, a living slurmstepd waits for a dead one; seconds
_ACTIVE = (JobState.RUNNING, JobState.SUSPENDED)


@dataclass
class FakeNode:
    name: str
    alive: bool = True
    down: bool = False
    drain: bool = False
    reason: str = ""
    reason_user: str = ""
    died_at: float = 0.0


@dataclass
class FakeJob:
    job_id: int
    submission: Submission
    num_nodes: int
    tasks_per_node: int  # 0: not requested
    num_tasks: int
    user: str
    name: str
    comment: str
    partition: str
    requeue: bool
    excluded: tuple[str, ...]
    required: tuple[str, ...]
    state: JobState = JobState.PENDING
    completing_since: float | None = None
    after: int = 0  # the job that must have ended first (--dependency=afterany)
    held: bool = False
    reason: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    ran_on: tuple[str, ...] = ()
    started_on: tuple[str, ...] = ()  # all nodes of the last start, before any shrink
    batch_host: str = ""
    begin: float = 0.0
    began: float | None = None  # the present start, or the last one
    ended_at: float = float("-inf")
    exit_code: int = 0
    exit_signal: int = 0

    @property
    def completing(self) -> bool:
        return self.completing_since is not None


class FakeCluster:
    def __init__(self, nodes: Iterable[str]) -> None:
        self.now = 0.0
        self.nodes = {name: FakeNode(name) for name in nodes}
        self.jobs: dict[int, FakeJob] = {}
        self.past: list[Start] = []  # as accounting keeps them, in the order of their ends
        self.scheduling = True

    def advance(self, seconds: float) -> None:
        """Advance the time: dead nodes are noticed, jobs stop completing, pending jobs start."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.1)
            self._notice_dead_nodes()
            for job in self.jobs.values():
                self._end_completing(job)
            if self.scheduling:
                self.schedule()

    def schedule(self) -> None:
        for job in sorted(self.jobs.values(), key=lambda job: job.job_id):
            if job.state is JobState.PENDING and not job.completing and not job.held:
                self._try_start(job)

    def busy(self) -> set[str]:
        holding = (job for job in self.jobs.values() if job.completing or job.state in _ACTIVE)
        return {name for job in holding for name in job.nodes}

    def _try_start(self, job: FakeJob) -> None:
        if job.begin > self.now:
            job.reason = "BeginTime"
            return
        first = self.jobs.get(job.after)
        if first is not None and (first.completing or not first.state.ended):
            job.reason = "Dependency"
            return
        busy = self.busy()
        free = [
            node.name
            for node in self.nodes.values()
            if not (node.drain or node.down or node.name in busy or node.name in job.excluded)
        ]
        if job.num_tasks > job.num_nodes * job.tasks_per_node:
            job.reason = "BadConstraints"
            return
        if set(job.required) & set(job.excluded):
            job.reason, job.held = "BadConstraints", True
            return
        if len(free) < job.num_nodes:
            job.reason = "Resources"
            return
        job.nodes = tuple(free[: job.num_nodes])
        job.batch_host, job.state, job.reason = job.nodes[0], JobState.RUNNING, ""
        job.started_on, job.began = job.nodes, self.now
        if self.now - job.ended_at < CREDENTIAL_GRAIN:
            self.end(job, JobState.FAILED, code=1)
            job.completing_since = None

    def end(self, job: FakeJob, state: JobState, *, code: int = 0, signal: int = 0) -> None:
        """End this start of the job; its nodes have not yet reported that it is gone."""
        over = state.ended  # a requeued start has no exit code
        start = Start(job.job_id, state, code if over else None, signal if over else None, job.started_on)
        self.past.append(replace(start, began=job.began, ended=self.now, comment=job.comment))
        job.ran_on = job.nodes
        job.state, job.exit_code, job.exit_signal = state, code, signal
        job.completing_since = job.ended_at = self.now

    def end_waiting(self, job: FakeJob) -> None:
        """Cancel the job before it starts (again)."""
        job.state, job.held = JobState.CANCELLED, False
        self.past.append(Start(job.job_id, JobState.CANCELLED, 0, 0, (), None, self.now, comment=job.comment))

    def requeue(self, job: FakeJob, *, held: bool) -> None:
        if job.state in _ACTIVE:
            self.end(job, JobState.PENDING)
        job.state, job.held = JobState.PENDING, held
        job.reason = "job_requeued_in_held_state" if held else ""
        job.restarts += 1
        job.begin = self.now + REQUEUE_DELAY
        if not job.completing:
            job.nodes, job.batch_host = (), ""

    def _end_completing(self, job: FakeJob) -> None:
        if job.completing_since is None or self.now - job.completing_since < COMPLETE_TIME:
            return
        waiting = self._waiting_for_the_dead(job)
        left = (name for name in job.nodes if not (self.nodes[name].alive or self.nodes[name].down))
        job.nodes = (*waiting, *left)
        if job.nodes:  # a dead node still holds the job; the living ones are free
            return
        job.completing_since = None
        if job.state is JobState.PENDING:
            job.batch_host = ""
            job.begin = max(job.begin, self.now + REQUEUE_DELAY)  # an earlier StartTime is overwritten
        else:
            job.nodes = job.ran_on

    def _waiting_for_the_dead(self, job: FakeJob) -> tuple[str, ...]:
        """The first living node: its slurmstepd has a dead one below it in the tree that reports a step's end."""
        over = self.now - (job.completing_since or 0.0) >= CHILDREN_TIMEOUT
        dead = [name for name in job.started_on if not self.nodes[name].alive]
        if over or not dead or len(job.started_on) < TREE:
            return ()
        return tuple(name for name in job.started_on if self.nodes[name].alive)[:1]

    def _notice_dead_nodes(self) -> None:
        for node in self.nodes.values():
            if node.alive or node.down or self.now - node.died_at < SLURMD_TIMEOUT:
                continue
            node.down, node.reason, node.reason_user = True, node.reason or "Not responding", "slurm"
            for job in self.jobs.values():
                if job.state in _ACTIVE and node.name in job.nodes:
                    if job.requeue:
                        self.requeue(job, held=False)
                    else:
                        self.end(job, JobState.NODE_FAIL)


def refused(call: str, words: str) -> SlurmRefused:
    return SlurmRefused(f"Slurm refused `{call}`", f"Slurm said: {words}")


def read_options(options: Sequence[str]) -> dict[str, str]:
    """Read `--key=value`, `--flag` and `-N3`, as far as the fake needs them."""
    read = {}
    for option in options:
        if option.startswith("-N"):
            read["nodes"] = option[2:]
        else:
            key, _, value = option.lstrip("-").partition("=")
            read[key] = value
    return read


def describe(job: FakeJob, *, excluded: tuple[str, ...]) -> Job:
    ended = job.state.ended
    return Job(
        job.job_id,
        job.state,
        completing=job.completing,
        held=job.state is JobState.PENDING and job.held,
        reason=job.reason,
        restarts=job.restarts,
        requeue=job.requeue,
        nodes=job.nodes,
        batch_host=job.batch_host,
        num_nodes=job.num_nodes,
        excluded=excluded,
        exit_code=job.exit_code if ended else None,
        exit_signal=job.exit_signal if ended else None,
        name=job.name,
        comment=job.comment,
        partition=job.partition,
        user=job.user,
        command=" ".join((str(job.submission.script.absolute()), *job.submission.args)),
    )
