"""The shapes of a run's account. Times are whole nanoseconds since the epoch, so that sums are exact. Frozen; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NS = 1_000_000_000


def ns(seconds: float) -> int:
    return round(seconds * NS)


class Kind(enum.Enum):
    """What a second of a run was spent on: exactly one of these (docs/goodput.md defines each)."""

    PRODUCTIVE = "productive"  # steps that were done for the first time
    REDONE = "redone"  # steps that had been done before, and were lost
    CHECKPOINT = "checkpoint"  # the training waits for a checkpoint
    DETECTION = "detection"  # from the last step before a fault to its first sign
    RESTART = "restart"  # from the first sign to the first step after it; also the start of the run
    PREFLIGHT = "preflight"  # nodes are examined before an attempt's first launch
    QUEUE = "queue"  # the job waits for nodes
    HOLD = "hold"  # the job waits for a person
    IDLE = "idle"  # nothing is to be trained, or nobody is there to start it again
    UNSEEN = "unseen"  # ranks run, and nothing tells whether they step


@dataclass(frozen=True)
class Span:
    """[begin, end) was of one kind. attempt: to which it counts. cause: a key of `Cause`, "" for what needs none."""

    begin: int
    end: int
    kind: Kind
    attempt: str = ""
    cause: str = ""

    @property
    def length(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Sample:
    """By `at`, every rank had done `step`. stalled: ns that a rank had spent in checkpoints by then, None: not told."""

    at: int
    step: int
    stalled: int | None = None


@dataclass(frozen=True)
class Sign:
    """The first sign of a fault: of an incident of the operator (i1, ...) or of the launcher (l1, ...)."""

    at: int
    incident: str
    category: str = ""  # as in `diagnose.clue.Category`; "" where nobody could tell


@dataclass(frozen=True)
class Launch:
    """One start of the training step. exact: the samples are its launcher's own, and the last one is the last step."""

    number: int
    at: int
    samples: tuple[Sample, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class Attempt:
    """What is known of one start of the job. Everything is None or empty where nobody has told of it.

    begun: its launcher is up, or Slurm says RUNNING. checked: its nodes were examined. ended: the launcher's outcome,
    of `status` and `cause` as in `events.OutcomeSeen`. handed: when its launcher gave the job back, held or not.
    """

    name: str
    begun: int | None = None
    checked: int | None = None
    launches: tuple[Launch, ...] = ()
    signs: tuple[Sign, ...] = ()
    ended: int | None = None
    status: str = ""
    cause: str = ""
    step: int = -1  # the newest one of the attempt, as its outcome has it
    handed: int | None = None
    held: bool = False
    launcher: bool = False  # one has told of this attempt; else it is known from Slurm alone

    @property
    def order(self) -> tuple[int, int]:
        job, _, restart = self.name.partition(".")
        return int(job), int(restart)


@dataclass(frozen=True)
class Point:
    """From `at` on the operator knew this. kind: of a second in which no launch runs.

    woke: the operator has just come up, and nobody watched before. attempt: the job's start that it takes for the
    present one.
    """

    at: int
    kind: Kind
    attempt: str = ""
    woke: bool = False


@dataclass(frozen=True)
class Cause:
    """Why time was lost. key: an incident's id (i2), a launcher's own (7.0/l1), an attempt's, or "start".

    step: the newest one that was ever done when it came, -1: none, or not known. lost: so many of them had to be done
    again; -1: not known, or not yet.
    """

    key: str
    category: str = ""
    at: int = 0
    step: int = -1
    lost: int = -1


@dataclass(frozen=True)
class History:
    """All that an account needs. until: the end of the run, or now. alive: an operator watches then.

    beats: steps of this run were seen, not only its checkpoints.
    """

    begin: int
    until: int
    over: bool
    alive: bool
    beats: bool = False
    points: tuple[Point, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    signs: tuple[tuple[str, Sign], ...] = ()  # (attempt, sign), of the operator's incidents
