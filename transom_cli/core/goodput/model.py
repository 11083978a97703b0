"""The values of an account. Times are integer nanoseconds since the epoch, so that sums are exact. Pure."""

import enum
from dataclasses import dataclass, replace

NS = 1_000_000_000


def ns(seconds: float) -> int:
    return round(seconds * NS)


class Kind(enum.Enum):
    """How a run spends its time. Each nanosecond has exactly one kind (docs/goodput.md)."""

    PRODUCTIVE = "productive"  # steps done for the first time
    REDONE = "redone"  # steps repeated after a rollback
    CHECKPOINT = "checkpoint"  # the training waits for a checkpoint
    DETECTION = "detection"  # from the last step before a fault to its first sign
    RESTART = "restart"  # from the first sign to the next step; also the start of the run
    PREFLIGHT = "preflight"  # nodes are checked before an attempt's first launch
    QUEUE = "queue"  # the job waits for nodes
    HOLD = "hold"  # the job is held
    IDLE = "idle"  # nothing to train, or no operator to restart it
    UNSEEN = "unseen"  # ranks run, but no steps are visible


class How(enum.Enum):
    """How a training continued after a fault."""

    REENTRY = "re-entry"  # ranks stayed, and the others were started from scratch
    REENTRY_STANDBY = "re-entry with standby"
    STANDBY = "standby"
    RELAUNCH = "relaunch"  # all ranks were started from scratch, in the same attempt
    RESTART = "new attempt"


@dataclass(frozen=True, slots=True)
class Span:
    """The time [begin, end) of one kind. attempt: which it counts to. cause: a key of `Cause`, or ""."""

    begin: int
    end: int
    kind: Kind
    attempt: str = ""
    cause: str = ""

    @property
    def length(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Sample:
    """Every rank had finished `step` by `at`. stalled: ns spent in checkpoints so far; None: unknown."""

    at: int
    step: int
    stalled: int | None = None


@dataclass(frozen=True)
class Sign:
    """The first sign of an incident of the operator (i1, ...) or of the launcher (l1, ...). hang: by the diagnosis."""

    at: int
    incident: str
    category: str = ""  # as in `diagnose.clue.Category`; "" if unknown
    hang: bool = False
    step: int = -1  # the newest before it, also by the ranks' exit records; -1: unknown


@dataclass(frozen=True)
class Launch:
    """One start of the training step."""

    number: int
    at: int
    samples: tuple[Sample, ...] = ()
    exact: bool = False  # the samples are the launcher's own, and the last one is the last step
    since_start: bool = False  # steps count from the start of the processes, and not from a known step
    job_step: str = ""  # as in `events.LaunchSeen`. Only steps of the same one are compared.
    # when that job step was done, if this is its last launch and the script may start another one
    done: int | None = None
    how: How = How.RELAUNCH  # how its ranks were started, after a fault
    left: str = ""  # why it was ended on purpose for the next launch: "grow", or "maintenance"

    @property
    def all_new(self) -> bool:
        """Whether steps count from the start of this launch. In a re-entry, survivors count on."""
        return self.since_start and self.how not in (How.REENTRY, How.REENTRY_STANDBY)


@dataclass(frozen=True)
class Attempt:
    """One start of the job. Unknown values are None or empty."""

    name: str
    began: int | None = None  # when the launcher came up, or Slurm reported RUNNING
    checked: int | None = None  # when the preflight checks ended
    launches: tuple[Launch, ...] = ()
    signs: tuple[Sign, ...] = ()
    ended: int | None = None  # when the launcher ended, with `status` and `cause` as in `events.OutcomeSeen`
    status: str = ""
    cause: str = ""
    step: int = -1  # the newest step, from the outcome; -1 if steps count from the start of the processes
    handoff: int | None = None  # when the launcher requeued the job; `held` says whether it is held
    held: bool = False
    launcher: bool = False  # the attempt had a launcher; without one, it is known from Slurm alone

    @property
    def order(self) -> tuple[int, int]:
        job, _, restart = self.name.partition(".")
        return int(job), int(restart)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the operator knew from `at` on."""

    at: int
    kind: Kind  # of time in which no launch runs
    attempt: str = ""  # the current attempt
    restarted: bool = False  # the operator has just started, and nobody watched before


@dataclass(frozen=True)
class Cause:
    """Why time was lost."""

    key: str  # an operator's incident (i2), a launcher's (7.0/l1), an attempt, a planned launch (7.0.2), or "start"
    category: str = ""
    at: int = 0
    step: int = -1  # the newest step finished before it; -1: none or unknown
    lost: int = -1  # number of steps to repeat; -1: unknown so far
    how: How | None = None  # how the training continued; None: not yet, or no fault was the cause
    hang: bool = False  # by the diagnosis
    planned: bool = False  # no fault: the run grew, or left a node that was being drained

    @property
    def recovery(self) -> str:
        return "" if self.how is None else self.how.value + (" after a hang" if self.hang else "")


@dataclass(frozen=True)
class History:
    """The input of an account."""

    begin: int
    until: int  # the end of the run, or now
    over: bool
    alive: bool  # an operator is alive at that time
    steps_seen: bool = False  # steps of the run were seen, and not only its checkpoints
    observations: tuple[Observation, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    signs: tuple[tuple[str, Sign], ...] = ()  # (attempt, sign) of the operator's incidents
    stepless: int | None = None  # since then no rank of a live training has made a step, as heartbeats show
    from_zero: bool = False  # as `counted_from_zero` has it

    @property
    def counted(self) -> bool:
        """Whether some launches are only known by their number of steps."""
        return any(one.all_new for attempt in self.attempts for one in attempt.launches)


def counted_from_zero(history: History) -> History:
    """Return the history of a run without a checkpoint: each launch begins where the first did."""
    attempts = (
        replace(one, launches=tuple(replace(x, since_start=x.since_start and not x.all_new) for x in one.launches))
        for one in history.attempts
    )
    return replace(history, attempts=tuple(attempts), from_zero=True)
