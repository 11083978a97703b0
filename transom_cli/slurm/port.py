"""Slurm as the rest of transom sees it: shapes, errors and the protocol that every adapter keeps.

Adapters: `slurm.cli` (the commands) and `slurm.fake` (in memory, for tests), held to one contract suite. Every call
either answers with what Slurm said, or raises one of the errors below; nothing is guessed. "Unknown" is never "dead".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from transom_cli.errors import NotPermitted, SlurmUnreachable, TransomError


class SlurmUnknown(SlurmUnreachable):
    """Slurm did not answer, answered too late, or answered nonsense: nothing is known. Worth asking again."""

    kind = "slurm_unknown"


class SlurmRefused(TransomError):
    """Slurm understood and said no (bad partition, job not pending, ...). Asking again will not help."""

    kind = "slurm_refused"


class SlurmDenied(NotPermitted):
    """Slurm said that this user may not (drain without admin rights, another user's job)."""


class NoSuchJob(SlurmRefused):
    """Slurm does not know the job (any more: it forgets a finished one after MinJobAge)."""

    kind = "no_such_job"


class JobCancelled(SlurmRefused):
    """A person has ended the job, so nothing goes on in its place."""

    kind = "job_cancelled"


class JobState(enum.Enum):
    """The base state of a job; flags are kept apart in `Job.flags`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    @property
    def ended(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN)


@dataclass(frozen=True)
class Job:
    """One job as Slurm tells it now. Times are left out of decisions: they are the controller's clock, not ours."""

    job_id: int
    state: JobState
    completing: bool = False  # the COMPLETING flag: processes of the last start are still being removed
    held: bool = False  # pending with priority 0 (held by its user, an admin, or Slurm itself)
    reason: str = ""  # Slurm's pending reason, verbatim ("Resources", "JobHeldUser", ...)
    restarts: int = 0
    requeue: bool = True  # Requeue=1: scontrol requeue is allowed
    nodes: tuple[str, ...] = ()  # allocated now; those of its last start once it has ended
    batch_host: str = ""
    num_nodes: int = 0  # asked for
    cpus_per_task: int = 1  # asked for; from `job` only, as `excluded`
    excluded: tuple[str, ...] = ()  # from `job` only: `jobs` leaves it empty, as squeue has no column for it
    exit_code: int | None = None  # of the batch script, when ended
    exit_signal: int | None = None
    name: str = ""
    comment: str = ""  # carries our tag, see `tag`
    partition: str = ""
    user: str = ""
    output: str = ""  # the file of its batch script's output, as Slurm tells it; from `job` only
    start: str = ""  # when Slurm expects a pending one to start, as it prints it; for people; from `job` only


@dataclass(frozen=True)
class Node:
    name: str
    state: str  # base state, lower case: idle, mixed, allocated, down, ...
    drain: bool = False
    not_responding: bool = False
    reason: str = ""
    reason_user: str = ""
    address: str = ""  # NodeAddr
    port: int = 6818  # the port of its slurmd

    @property
    def usable(self) -> bool:
        return not self.drain and not self.not_responding and self.state in ("idle", "mixed", "allocated", "completing")


@dataclass(frozen=True)
class Start:
    """One start of a job in accounting (`sacct -D`). PENDING is the state of one that a requeue ended.

    began, ended: seconds since the epoch, by the controller's clock; None: it has not. What never began has no nodes:
    a job that waits, or that was cancelled while it did. by: the user id of whoever cancelled it, where that is told.
    resized: when nodes were given up. comment: the --comment of its submission, "" where that is not told.
    """

    job_id: int
    state: JobState
    exit_code: int | None
    exit_signal: int | None
    nodes: tuple[str, ...]
    began: float | None = None
    ended: float | None = None
    by: int | None = None
    resized: tuple[float, ...] = ()
    comment: str = ""


@dataclass(frozen=True)
class Submission:
    """What `submit` hands to sbatch. `options` are sbatch flags that override the script's own #SBATCH lines."""

    script: Path
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # added to the caller's environment
    chdir: Path | None = None


class Slurm(Protocol):
    def submit(self, submission: Submission) -> int:
        """Submit and return the job id. Not repeated by the adapter: a lost answer is looked up by comment tag."""

    def jobs(self) -> list[Job]:
        """All jobs of the calling user that Slurm still knows, one call."""

    def job(self, job_id: int) -> Job:
        """One job in full. NoSuchJob when Slurm has forgotten it."""

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """The named nodes, or all."""

    def requeue(self, job_id: int) -> None:
        """`scontrol requeue`: it waits out Slurm's own delay. A job that is pending already is a success."""

    def requeue_hold(self, job_id: int) -> None:
        """`scontrol requeuehold`. A job that is pending already is a success."""

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        """Give up all nodes of a running job but these. SlurmRefused when the batch host is not among them."""

    def update_pending(
        self, job_id: int, *, exclude: Sequence[str], num_nodes: int | None = None, num_tasks: int | None = None
    ) -> None:
        """Replace the exclusion list (and the counts) of a pending job. SlurmRefused unless it is PENDING.

        A job with --ntasks-per-node never starts on fewer nodes than its numbers of tasks and of CPUs need: with
        `num_tasks` these are changed too.
        """

    def release(self, job_id: int) -> None:
        """Lift a user's hold. A job that is not held is a success."""

    def start_now(self, job_id: int) -> None:
        """StartTime=now: do not pay Slurm's requeue delay. Only useful once COMPLETING has ended."""

    def set_comment(self, job_id: int, comment: str) -> None:
        """Replace the job's Comment (never AdminComment or SystemComment), in any state but an ended one."""

    def cancel(self, job_id: int) -> None:
        """`scancel`. A job that has ended or is forgotten is a success."""

    def signal(self, job_id: int, name: str, *, step: str = "", batch: bool = False) -> None:
        """Send signal `name` ("USR2") to the job's steps, one step, or (batch=True) the batch shell alone."""

    def drain(self, node: str, reason: str) -> None:
        """Drain. SlurmDenied for ordinary users. A node that is drained already keeps its reason, and is a success."""

    def undrain(self, node: str, *, reason: str) -> None:
        """Resume a drained node, only while its reason is still `reason`: never another owner's. SlurmRefused else."""

    def history(self, *job_ids: int) -> list[Start]:
        """All that accounting has of these jobs, in one call; those of one job are in the order of time, and the last
        is its present state: that of a job that waits has not begun. A job id that came round again has older starts,
        of a job that was not ours. SlurmUnknown where there is no accounting, or none of these is in it (yet).
        """
