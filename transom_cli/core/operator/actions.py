"""The operator's actions. Each has a key that is the same after a restart, and is safe to repeat."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    key: str


@dataclass(frozen=True)
class Submit(Action):
    pass


@dataclass(frozen=True)
class Probe(Action):
    """Ask whether the node's slurmd answers. delay: seconds to wait, between two probes of a node."""

    node: str
    job_id: int
    delay: float = 0.0


@dataclass(frozen=True)
class ReadLogs(Action):
    """Read the logs of an attempt for the root cause. rank: the rank that died first, if known."""

    attempt: str
    rank: int | None


@dataclass(frozen=True)
class Isolate(Action):
    """Isolate a node: drain it if `drain` and permissions allow, otherwise exclude it from this run.

    most: how many nodes transom may drain in the cluster within `within` seconds, for all users together. None: any.
    """

    node: str
    reason: str
    drain: bool
    most: int | None = None
    within: float = 3600.0


@dataclass(frozen=True)
class Restart(Action):
    """Requeue the job without the excluded nodes. It names the restart count that it expects."""

    job_id: int
    expect_restarts: int
    num_nodes: int
    exclude: tuple[str, ...]
    dead: tuple[str, ...]
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch(Action):
    """Set the exclusions of a pending job (requeued by Slurm, or exclusions have expired)."""

    job_id: int
    exclude: tuple[str, ...]
    drop: tuple[str, ...] = ()
    start: bool = False  # let it start at once; Slurm delays a requeued job by about 121 s
    num_nodes: int = 0  # request this many, 0: unchanged


@dataclass(frozen=True)
class Release(Action):
    job_id: int


@dataclass(frozen=True)
class Cancel(Action):
    """job_id 0: no job is known yet. Submit no more, and cancel what was submitted."""

    job_id: int
