"""What the launcher's core orders. Frozen."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.core.events import UNDECIDED, Decided, NodeFault, OutcomeSeen


@dataclass(frozen=True)
class GoBack:
    """From `launch` on, in this attempt and those after it, the training goes on from step `to`, or from before it.

    skip: the first and the last step whose batches it is to leave out; None: none. why: for a person.
    """

    launch: int
    to: int
    skip: tuple[int, int] | None
    why: str


@dataclass(frozen=True)
class Start:
    """Start the training step on these nodes, with a rendezvous of its own.

    faults: what was found against nodes that carry no rank therefore.
    """

    launch: int
    nodes: tuple[str, ...]
    faults: tuple[NodeFault, ...] = ()


@dataclass(frozen=True)
class CheckNodes:
    """Examine these nodes. tier: as in `health.check.Tier`. key: by which the answer is known."""

    key: str
    nodes: tuple[str, ...]
    tier: str


@dataclass(frozen=True)
class Flush:
    """Have all ranks save at a step that none of them has passed, soon."""

    launch: int


@dataclass(frozen=True)
class Keep:
    """Have the newest step that the nodes hold in memory made durable, without the ranks."""

    launch: int


@dataclass(frozen=True)
class End:
    """Leave nothing of the launch on any node; first take evidence of every rank, if asked to."""

    launch: int
    incident: str
    evidence: bool


@dataclass(frozen=True)
class ReadLogs:
    launch: int
    rank: int | None


@dataclass(frozen=True)
class Tell:
    """Put a line of the incident's story into the launcher's journal, where the operator reads it."""

    incident: str
    what: str
    words: str
    cause: str = ""
    nodes: tuple[str, ...] = ()
    faults: tuple[NodeFault, ...] = ()
    decided: Decided = UNDECIDED
    durable: int | None = None  # the newest step to go on from, where it went back


@dataclass(frozen=True)
class Leave:
    """Write the outcome and end the attempt.

    again: what to do where no operator lives: "requeue", "hold", "uncancelled" (requeue a job that Slurm ended for its
    time limit, or preempted, but not one that was cancelled), or "" (nothing).
    """

    outcome: OutcomeSeen
    exit_code: int
    again: str = ""


Order = Start | GoBack | CheckNodes | Flush | Keep | End | ReadLogs | Tell | Leave
