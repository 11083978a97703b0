"""What the launcher's core (`core.ladder`) hears, orders and remembers. Frozen; `at` is in seconds, on its clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from transom_cli.core.events import OutcomeSeen, RankExit
from transom_cli.core.state import Incident
from transom_cli.layout import attempt_name


@dataclass(frozen=True)
class LadderPolicy:
    """relaunches: how many without progress, for each cause, before the attempt is handed up; 0: none at all.

    settle: seconds after the first bad exit in which the other ranks' ends are still waited for.
    late: seconds for the ranks' words to come through a network file system, once their srun has ended.
    come_up: seconds for a relaunched step to start its tasks; or three times what the first launch took.
    ending, reading: seconds after which the end of a launch, or the reading of its logs, counts as failed.
    """

    relaunches: int = 3
    settle: float = 1.0
    late: float = 5.0
    come_up: float = 120.0
    ending: float = 120.0
    reading: float = 30.0


# --- what it hears ---


@dataclass(frozen=True)
class Heard:
    at: float


@dataclass(frozen=True)
class Begun(Heard):
    """The attempt has its nodes; `durable` is the newest checkpoint's step, or -1."""

    durable: int = -1


@dataclass(frozen=True)
class Tick(Heard):
    pass


@dataclass(frozen=True)
class Appeared(Heard):
    """The first sign of a launch's tasks: a log, a beat, an exit."""

    launch: int


@dataclass(frozen=True)
class NotStarted(Heard):
    """A training step that could not even be asked for."""

    launch: int
    words: str


@dataclass(frozen=True)
class Exits(Heard):
    """How ranks of a launch ended so far. `over`: its srun has ended too, with `srun` as exit code."""

    launch: int
    exits: tuple[RankExit, ...]
    over: bool = False
    srun: int | None = None


@dataclass(frozen=True)
class Quiet(Heard):
    """The ranks of a launch stopped stepping for longer than the learned limit. `nodes`: where the culprits are."""

    launch: int
    step: int
    quiet_for: float
    limit: float
    culprits: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stepped(Heard):
    """A step that every rank of the launch has done."""

    launch: int
    step: int


@dataclass(frozen=True)
class Durable(Heard):
    step: int


@dataclass(frozen=True)
class Ended(Heard):
    """Answer to `End`. unheard: nodes whose agent did not say that all is gone; survivors: (node, what lives on)."""

    launch: int
    exits: tuple[RankExit, ...] = ()
    unheard: tuple[str, ...] = ()
    survivors: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()  # one line a rank, where it was asked for


@dataclass(frozen=True)
class Read(Heard):
    """Answer to `ReadLogs`: category and line as in `events.Examined`."""

    launch: int
    category: str
    line: str
    where: str = ""


@dataclass(frozen=True)
class Told(Heard):
    """Slurm or a person ends the attempt: TERM or INT."""

    signal: str


@dataclass(frozen=True)
class Overtime(Heard):
    """The time that Slurm leaves a job that is told to end is almost up."""


# --- what it orders ---


@dataclass(frozen=True)
class Start:
    """Start the training step on the attempt's nodes, with a rendezvous of its own."""

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


@dataclass(frozen=True)
class Leave:
    """Write the outcome and end the attempt."""

    outcome: OutcomeSeen
    exit_code: int


Order = Start | End | ReadLogs | Tell | Leave


# --- what it remembers ---


class Rung(enum.Enum):
    """Where the attempt stands."""

    TRAINING = "training"
    ENDING = "ending"  # what is left of a failed launch is being removed
    READING = "reading"  # its logs are being read
    LEFT = "left"  # the outcome is ordered: nothing follows


@dataclass(frozen=True)
class LadderState:
    job_id: int
    restart: int
    nodes: tuple[str, ...]
    tasks: int  # whose ends are recorded: one a rank; under torchrun one a node
    policy: LadderPolicy = LadderPolicy()
    rung: Rung = Rung.TRAINING
    since: float = 0.0  # on this rung
    launch: int = -1
    appeared: bool = False  # tasks of this launch were seen
    came_up: float = 0.0  # seconds that the first launch took to be seen
    step: int = -1  # of this launch
    max_step: int = -1  # of this attempt
    durable: int = -1
    exits: tuple[RankExit, ...] = ()
    over_since: float | None = None  # its srun has ended
    srun: int | None = None
    failing_since: float | None = None
    told: str = ""
    progress: int = -1  # what the last relaunch could count on
    spent: tuple[tuple[str, int], ...] = ()  # relaunches without progress, by cause
    incident: Incident | None = None
    incidents: tuple[Incident, ...] = ()
    after: Ended | None = None  # how the launch in question was ended

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restart)
