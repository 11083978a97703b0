"""What the operator can order. Each action has a key that is the same after a restart, and is safe to do twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    key: str


@dataclass(frozen=True)
class Submit(Action):
    pass


@dataclass(frozen=True)
class Probe(Action):
    """Ask whether the node's slurmd answers. `delay` (seconds) parts the second look from the first."""

    node: str
    job_id: int
    delay: float = 0.0


@dataclass(frozen=True)
class Examine(Action):
    """Read the logs of an attempt for the first cause; `rank` is the one that died first, if known."""

    attempt: str
    rank: int | None


@dataclass(frozen=True)
class Isolate(Action):
    """Keep a node away: drain it where `drain` and rights allow, else exclude it from this run."""

    node: str
    reason: str
    drain: bool


@dataclass(frozen=True)
class Restart(Action):
    """Give the job back to Slurm without the excluded nodes. Names the restart count that it expects."""

    job_id: int
    expect_restarts: int
    num_nodes: int
    exclude: tuple[str, ...]
    dead: tuple[str, ...]
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch(Action):
    """Set the exclusions of a job that is pending already (requeued behind our back, or exclusions expired).

    `start`: then let it start at once; Slurm keeps what it requeued waiting for about 121 s. `num_nodes`: so many are
    enough, 0: as it is.
    """

    job_id: int
    exclude: tuple[str, ...]
    drop: tuple[str, ...] = ()
    start: bool = False
    num_nodes: int = 0


@dataclass(frozen=True)
class Release(Action):
    job_id: int


@dataclass(frozen=True)
class Cancel(Action):
    """`job_id` 0: no job is known yet. Submit no more, and cancel what was submitted."""

    job_id: int
