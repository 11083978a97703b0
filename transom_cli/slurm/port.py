"""Slurm as the rest of transom sees it: data classes, errors, and the protocol that every adapter implements. Pure.

Adapters are `slurm.cli` (the commands) and `slurm.pyslurm`; tests have one in memory (`slurm_fake`). One contract suite
tests all of them. A call either returns what Slurm answered or raises one of the errors below; nothing is guessed.
"Unknown" is never "dead".

At the end: Slurm's commands as a person types them, and Slurm's times in seconds.
"""

import enum
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from transom_cli.errors import NotPermitted, SlurmUnreachable, TransomError, printable

_NEVER_SENT = re.compile(
    r"unable to contact slurm|connection refused|connect failure|communication connection failure"
    r"|slurm backup controller in standby|munge encode failed|unable to establish a? ?configuration"
    r"|could not establish a? ?configuration|unable to process configuration file",
    re.IGNORECASE,
)


class SlurmUnknown(SlurmUnreachable):
    """Slurm did not answer, or not in time, or its answer makes no sense: nothing is known. A retry may help."""

    kind = "slurm_unknown"

    @property
    def never_sent(self) -> bool:
        """Whether the request cannot have reached Slurm, so that it had no effect."""
        return bool(_NEVER_SENT.search(self.why))


class SlurmRefused(TransomError):
    """Slurm rejected the request (invalid partition, job not pending, ...). A retry does not help."""

    kind = "slurm_refused"


class SlurmDenied(NotPermitted):
    """Slurm denied permission to this user (drain without admin rights, another user's job)."""


class NoSuchJob(SlurmRefused):
    """Slurm does not know the job. It forgets a finished job after MinJobAge."""

    kind = "no_such_job"


class JobCancelled(SlurmRefused):
    """A person has cancelled the job, so nothing succeeds it."""

    kind = "job_cancelled"
    advice = "`transom resume` continues the run"


class JobState(enum.Enum):
    """The base state of a job, without flags such as COMPLETING."""

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
    """One job as Slurm reports it now. Decisions use no times: they come from the controller's clock, not ours."""

    job_id: int
    state: JobState
    completing: bool = False  # the COMPLETING flag: processes of the last start are still being removed
    held: bool = False  # pending with priority 0: held by its user, an admin, or Slurm
    reason: str = ""  # Slurm's pending reason, verbatim ("Resources", "JobHeldUser", ...)
    restarts: int = 0
    requeue: bool = True  # Requeue=1: scontrol requeue is allowed
    nodes: tuple[str, ...] = ()  # allocated now, or in the last start if the job has ended
    batch_host: str = ""
    num_nodes: int = 0  # requested
    cpus_per_task: int = 1  # requested; only from `job`, like `excluded`
    excluded: tuple[str, ...] = ()  # only from `job`: squeue has no column for it
    exit_code: int | None = None  # of the batch script, if it has ended
    exit_signal: int | None = None
    name: str = ""
    comment: str = ""  # contains our tag (`slurm.tags`)
    partition: str = ""
    user: str = ""
    command: str = ""  # the batch script and its arguments, as passed to sbatch
    output: str = ""  # the batch script's output file as Slurm shows it; only from `job`
    start: str = ""  # expected start of a pending job, as Slurm prints it; only from `job`
    ahead: int = 0  # pending jobs of its partition with a higher priority, if somebody has counted them (`count_ahead`)
    requirements: tuple[tuple[str, str], ...] = ()  # node requirements: sbatch flag and value; only from `job`
    suspended_at: str = ""  # last suspended or resumed, as Slurm prints it; only from `job`
    part_of: str = ""  # array or het, if the job is one part of that; only from `job`


@dataclass(frozen=True)
class Node:
    name: str
    state: str  # base state, lower case: idle, mixed, allocated, down, ...
    drain: bool = False
    not_responding: bool = False
    reason: str = ""
    reason_user: str = ""
    reason_at: str = ""  # when the reason was set, on the controller's clock, as Slurm prints it
    address: str = ""  # NodeAddr
    port: int = 6818  # the port of its slurmd
    gpus: int | None = None  # that Slurm counts on it; None: unknown (pyslurm), as in the next two
    cpus: int | None = None
    memory: int | None = None  # MiB
    partitions: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return not self.drain and not self.not_responding and self.state in ("idle", "mixed", "allocated", "completing")


@dataclass(frozen=True)
class Start:
    """One start of a job in accounting (`sacct -D`). A start that a requeue ended has the state PENDING.

    Attributes:
        began, ended: seconds since the epoch, on the controller's clock; None: not yet.
    """

    job_id: int
    state: JobState
    exit_code: int | None
    exit_signal: int | None
    nodes: tuple[str, ...]  # empty if the start never began: the job is pending, or was cancelled while pending
    began: float | None = None
    ended: float | None = None
    by: int | None = None  # ID of the user who cancelled the job, if known
    resized: tuple[float, ...] = ()  # times at which the job was shrunk
    comment: str = ""  # the --comment of the submission, "" if not known


@dataclass(frozen=True)
class Submission:
    """What `submit` passes to sbatch. `options` override the script's own #SBATCH lines."""

    script: Path
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # added to the caller's environment
    chdir: Path | None = None


@dataclass(frozen=True)
class BackendTrial:
    """Result of trying pyslurm once, for `transom doctor`."""

    works: str = ""  # what works, in a few words; empty if pyslurm does not work, with the reason in `why_not`
    why_not: str = ""
    detours: Mapping[str, str] = field(default_factory=dict)  # by call, why it goes through the command line
    wish: str = ""  # the setting that requests pyslurm


class Slurm(Protocol):
    def submit(self, submission: Submission) -> int:
        """Submit and return the job ID. Adapters never retry: after a lost answer, look the job up by its tag."""

    def jobs(self) -> list[Job]:
        """Return all jobs of the calling user that Slurm still knows, in one call."""

    def job(self, job_id: int) -> Job:
        """Return one job in full. Raises NoSuchJob if Slurm has forgotten it."""

    def count_ahead(self, job: Job) -> int:
        """Return how many pending jobs of this pending job's partition have a higher priority, of those it shows."""

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """Return the named nodes, or all."""

    def requeue(self, job_id: int) -> None:
        """`scontrol requeue`; the job then waits for Slurm's own delay. Succeeds if the job is already pending."""

    def requeue_hold(self, job_id: int) -> None:
        """`scontrol requeuehold`. Succeeds if the job is already pending."""

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        """Shrink a running job to these nodes. Raises SlurmRefused unless the batch host is among them."""

    def update_pending(
        self, job_id: int, *, exclude: Sequence[str], num_nodes: int | None = None, num_tasks: int | None = None
    ) -> None:
        """Replace the exclusion list (and the counts) of a pending job. Raises SlurmRefused unless it is PENDING.

        A job with --ntasks-per-node never starts on fewer nodes than its task and CPU counts need: `num_tasks` changes
        these too.
        """

    def keep_nodes(self, job_id: int, nodes: Sequence[str], comment: str) -> int:
        """Submit a job of one minute that takes these nodes when the given job leaves them. Return its ID.

        If there is one with this comment already, its ID is returned. Nothing is submitted, and 0 returned, without
        nodes, or if nobody else seems to wait for nodes of the partition.
        """

    def release(self, job_id: int) -> None:
        """Release a user's hold. Succeeds if the job is not held."""

    def start_now(self, job_id: int) -> None:
        """StartTime=now: skip Slurm's requeue delay. Only useful when COMPLETING has ended."""

    def set_comment(self, job_id: int, comment: str) -> None:
        """Replace the job's Comment (never AdminComment or SystemComment), unless the job has ended."""

    def cancel(self, job_id: int) -> None:
        """`scancel`. Succeeds if the job has ended or is forgotten."""

    def drain(self, node: str, reason: str) -> None:
        """Drain a node. Raises SlurmDenied for ordinary users. A drained node keeps its reason."""

    def undrain(self, node: str, *, reason: str) -> None:
        """Resume a drained node if its reason is still `reason`; a node that does not respond stays down.

        Raises:
            SlurmRefused: another owner has drained it.
        """

    def history(self, *job_ids: int) -> list[Start]:
        """Return all starts of these jobs in accounting, in one call.

        The starts of one job are in order of time, and the last one is its present state; that of a pending job has
        not begun. A reused job ID also has the starts of an older job.

        Raises:
            SlurmUnknown: there is no accounting, or it has none of these jobs (yet).
        """


def cluster_command(command: str, cluster: str = "") -> str:
    """Return a Slurm command for one of several clusters: `scontrol release 7` as `scontrol -M alps release 7`.

    Two clusters use the same job IDs and may use the same node names. A command without its cluster could affect
    another job or node.

    Args:
        cluster: as in `job.cluster`; "" is the cluster that Slurm's commands use by default.
    """
    if not cluster:
        return command
    name, _, words = command.partition(" ")
    return f"{name} -M {shlex.quote(printable(cluster))} {words}".rstrip()


def release_commands(job_id: int, reason: str, excluded: tuple[str, ...], cluster: str = "") -> dict[str, str]:
    """Return the commands after which a held job may start, by their purpose. reason: Slurm's reason of the hold.

    If only excluded nodes would fit, Slurm holds a released job again at once. It does not notice by itself when other
    nodes become suitable, for example when a reservation gets more nodes.
    """
    release = cluster_command(f"scontrol release {job_id}", cluster)
    release += "   # by an administrator" if reason == "JobHeldAdmin" else ""  # Slurm refuses everyone else
    if reason.startswith("BadConstraints") and not excluded:
        show = cluster_command(f"scontrol show job {job_id}", cluster)
        return {"what it asks for": f"{show}   # no node has all of it", "with other nodes": release}
    if reason.startswith("BadConstraints"):
        return {"continue": f"transom nodes --lift {','.join(excluded)}", "new nodes": release}
    return {"continue": release}


def slurm_seconds(value: str | None) -> int | None:
    """Return a Slurm time limit in seconds, rounded up to minutes. None: unset, or no limit (UNLIMITED, 0)."""
    if value is None or not value[0].isdigit():
        return None
    days, dash, rest = value.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # D-H, D-H:M, D-H:M:S
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:  # M, M:S, H:M:S
        hours, minutes, seconds = parts if len(parts) == 3 else (0, *parts, 0)[:3]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return -(-total // 60) * 60 or None


Connect = Callable[[float], Slurm]
"""Makes a client. The argument: seconds without an answer after which a call fails."""
