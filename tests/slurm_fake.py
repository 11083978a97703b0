"""`FakeSlurm`: the `Slurm` protocol on a cluster in memory, for tests. The same contract suite tests it.

`sleep` and `clock` use its own time. `calls` records all calls. `fail_next` and `fail_call` make calls fail before or
after they take effect (a lost answer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import TypeVar, cast

from slurm_fake_cluster import FakeCluster, FakeJob, FakeNode, describe, read_options, refused

from transom_cli.slurm import port
from transom_cli.slurm.port import Job, JobState, Node, NoSuchJob, SlurmDenied, Start, Submission

F = TypeVar("F", bound=Callable[..., object])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _recorded(method: F) -> F:
    @wraps(method)
    def call(self: FakeSlurm, *args: object, **kwargs: object) -> object:
        number = len(self.calls)
        self.calls.append((method.__name__, *args))
        plans: tuple[tuple[str, object], ...] = (("call", number), ("name", method.__name__))
        planned = next((self._failures.pop(plan) for plan in plans if plan in self._failures), None)
        if planned and not planned[1]:
            raise planned[0]
        try:
            return method(self, *args, **kwargs)
        finally:
            if planned:  # even instead of a refusal: the answer is lost
                raise planned[0]

    return cast(F, call)


class FakeSlurm:
    def __init__(
        self,
        nodes: Sequence[str] = ("n1", "n2", "n3", "n4"),
        *,
        user: str = "user",
        admin: bool = False,
        partitions: Sequence[str] = ("main",),
        accounting: bool = False,
    ) -> None:
        self.cluster = FakeCluster(nodes)
        self.accounting = accounting
        self.user = user
        self.admin = admin
        self.partitions = tuple(partitions)
        self.calls: list[tuple[object, ...]] = []
        self._failures: dict[tuple[str, object], tuple[BaseException, bool]] = {}
        self._next_id = 1
        self.comment_rule: str | None = None  # what the site's job_submit plugin changes every comment to
        self.unlisted: set[int] = set()  # jobs that `jobs` leaves out

    # --- controls for tests ---

    def clock(self) -> float:
        return self.cluster.now

    def sleep(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def tick(self, seconds: float = 1.0) -> None:
        self.cluster.advance(seconds)

    def start_pending(self) -> None:
        """Run the scheduler once, now."""
        self.cluster.schedule()

    def finish(self, job_id: int, code: int = 0, *, signal: int = 0, state: JobState | None = None) -> None:
        """End the batch script."""
        usual = JobState.FAILED if code or signal else JobState.COMPLETED
        self.cluster.end(self.cluster.jobs[job_id], state or usual, code=code, signal=signal)

    def requeue_behind(self, job_id: int) -> None:
        """Requeue the job as Slurm or an administrator would, without a request from us."""
        self.cluster.requeue(self.cluster.jobs[job_id], held=False)

    def hold_behind(self, job_id: int, reason: str = "launch_failed_requeued_held") -> None:
        """Hold a pending job, as after a failed prolog or by a person."""
        self.cluster.jobs[job_id].held, self.cluster.jobs[job_id].reason = True, reason

    def forget(self, job_id: int) -> None:
        """Drop the job, as after MinJobAge."""
        del self.cluster.jobs[job_id]

    def kill_node(self, name: str) -> None:
        node = self.cluster.nodes[name]
        node.alive, node.died_at = False, self.cluster.now

    def restore_node(self, name: str) -> None:
        node = self.cluster.nodes[name]
        node.alive, node.down = True, False

    def fail_next(self, call: str, error: BaseException, *, after: bool = False) -> None:
        """Make the next call of this name raise `error`; with `after`, after it took effect."""
        self._failures["name", call] = (error, after)

    def fail_call(self, number: int, error: BaseException, *, after: bool = False) -> None:
        """Make the call with this index in `calls` raise `error`; with `after`, after it took effect."""
        self._failures["call", number] = (error, after)

    # --- the protocol ---

    @_recorded
    def submit(self, submission: Submission) -> int:
        options = read_options(submission.options)
        partition = options.get("partition", self.partitions[0])
        if partition not in self.partitions:
            raise refused("submit", "Batch job submission failed: Invalid partition name specified")
        required, excluded = (_names(options.get(flag, "")) for flag in ("nodelist", "exclude"))
        if set(required) & set(excluded):
            raise refused("submit", "Batch job submission failed: Invalid node name specified")
        if not submission.script.is_file():
            raise refused("submit", f"sbatch: error: Unable to open file {submission.script}")
        nodes = int(options.get("nodes", "1").rpartition("-")[2])  # of a range: the most
        job = FakeJob(
            self._next_id,
            submission,
            num_nodes=nodes,
            tasks_per_node=int(options.get("ntasks-per-node", "0")),
            num_tasks=nodes * int(options.get("ntasks-per-node", "0")),
            user=self.user,
            name=options.get("job-name", submission.script.name),
            comment=options.get("comment", "") if self.comment_rule is None else self.comment_rule,
            partition=partition,
            requeue="no-requeue" not in options,
            excluded=excluded,
            required=required,
            after=int(options.get("dependency", "afterany:0").removeprefix("afterany:")),
            held="hold" in options,
            reason="JobHeldUser" if "hold" in options else "",
        )
        self._next_id += 1
        self.cluster.jobs[job.job_id] = job
        return job.job_id

    @_recorded
    def jobs(self) -> list[Job]:
        mine = (job for job in self.cluster.jobs.values() if job.user == self.user)
        return [describe(job, excluded=()) for job in mine if job.job_id not in self.unlisted]

    @_recorded
    def job(self, job_id: int) -> Job:
        job = self._known(job_id)
        return describe(job, excluded=job.excluded)

    @_recorded
    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        for name in names:
            if name not in self.cluster.nodes:
                raise refused("nodes", f"Node {name} not found")
        busy = self.cluster.busy()
        return [
            Node(
                node.name,
                "down" if node.down else "allocated" if node.name in busy else "idle",
                drain=node.drain,
                not_responding=node.down,
                reason=node.reason,
                reason_user=node.reason_user,
                address="127.0.0.1",
            )
            for node in self.cluster.nodes.values()
            if not names or node.name in names
        ]

    @_recorded
    def requeue(self, job_id: int) -> None:
        job = self._ours(job_id)
        if job.state is JobState.PENDING:
            return
        if not job.requeue:
            raise refused("requeue", "Requested operation is presently disabled")
        self.cluster.requeue(job, held=False)

    @_recorded
    def requeue_hold(self, job_id: int) -> None:
        job = self._ours(job_id)
        if job.state is JobState.PENDING:
            return
        if not job.requeue:
            raise refused("requeue_hold", "Requested operation is presently disabled")
        self.cluster.requeue(job, held=True)

    @_recorded
    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        job = self._ours(job_id)
        if job.state is not JobState.RUNNING:
            raise refused("shrink", "Job has already finished")
        if job.batch_host not in nodes or not set(nodes) <= set(job.nodes):
            raise refused("shrink", "Invalid node name specified")
        job.nodes = tuple(nodes)
        job.num_nodes = len(job.nodes)

    @_recorded
    def update_pending(
        self, job_id: int, *, exclude: Sequence[str], num_nodes: int | None = None, num_tasks: int | None = None
    ) -> None:
        job = self._ours(job_id)
        if job.state is not JobState.PENDING:
            ended = "Job has already finished" if job.state.ended else "Job is no longer pending execution"
            raise refused("update_pending", ended)
        for name in exclude:
            if name not in self.cluster.nodes:
                raise refused("update_pending", "Invalid node name specified")
        job.excluded = tuple(exclude)
        job.num_nodes = num_nodes or job.num_nodes
        job.num_tasks = num_tasks or job.num_tasks

    def count_ahead(self, job: Job) -> int:
        return 0  # nobody else uses this cluster

    def keep_nodes(self, job_id: int, nodes: Sequence[str], comment: str) -> int:
        return 0  # nobody else uses this cluster

    @_recorded
    def release(self, job_id: int) -> None:
        job = self._ours(job_id)
        if job.state.ended:
            raise refused("release", "Job has already finished")
        if job.held:
            job.held, job.reason = False, ""

    @_recorded
    def start_now(self, job_id: int) -> None:
        job = self._ours(job_id)
        if job.state.ended:
            raise refused("start_now", "Job has already finished")
        job.begin = self.cluster.now

    @_recorded
    def set_comment(self, job_id: int, comment: str) -> None:
        job = self._ours(job_id)
        if job.state.ended:
            raise refused("set_comment", "Job has already finished")
        job.comment = comment

    @_recorded
    def cancel(self, job_id: int) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is None or job.state.ended:
            return
        self._ours(job_id)
        if job.state is JobState.PENDING:
            self.cluster.end_waiting(job)
        else:
            self.cluster.end(job, JobState.CANCELLED, signal=15)

    @_recorded
    def drain(self, node: str, reason: str) -> None:
        known = self._node(node)
        if known.drain:
            return
        self._need_admin("drain")
        known.drain, known.reason, known.reason_user = True, reason, self.user

    @_recorded
    def undrain(self, node: str, *, reason: str) -> None:
        known = self._node(node)
        if not known.drain:
            return
        if known.reason != reason:
            raise refused("undrain", f"its reason is: {known.reason}")
        self._need_admin("undrain")
        known.drain = False

    @_recorded
    def history(self, *job_ids: int) -> list[Start]:
        if not self.accounting:
            raise port.SlurmUnknown("Slurm did not answer `sacct`", "Slurm accounting storage is disabled")
        starts = [start for job_id in job_ids for start in self._history(job_id)]
        if not starts:
            raise port.SlurmUnknown("Accounting has no record of these jobs (yet)", "sacct printed nothing")
        return starts

    def _history(self, job_id: int) -> Iterator[Start]:
        yield from (start for start in self.cluster.past if start.job_id == job_id)
        job = self.cluster.jobs.get(job_id)
        if job is not None and not job.state.ended:
            waits = job.state is JobState.PENDING
            start = Start(job_id, job.state, None, None, (), comment=job.comment)
            yield start if waits else replace(start, nodes=job.started_on, began=job.began)

    def _known(self, job_id: int) -> FakeJob:
        if job_id not in self.cluster.jobs:
            raise NoSuchJob("Slurm does not know this job", "Invalid job id specified")
        return self.cluster.jobs[job_id]

    def _ours(self, job_id: int) -> FakeJob:
        job = self._known(job_id)
        if job.user != self.user and not self.admin:
            raise SlurmDenied("Slurm refused", "Access/permission denied")
        return job

    def _node(self, name: str) -> FakeNode:
        if name not in self.cluster.nodes:
            raise refused("drain", f"Node {name} not found")
        return self.cluster.nodes[name]

    def _need_admin(self, call: str) -> None:
        if not self.admin:
            raise SlurmDenied(f"Slurm refused `{call}`", "slurm_update error: Invalid user id")
