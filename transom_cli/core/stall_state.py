"""Types of the stall detector (`core.stall`): limits, findings and state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from transom_cli.core.events import Stall
from transom_cli.core.step_times import StepTimes
from transom_cli.heartbeat.table import RankBeat


@dataclass(frozen=True)
class StallLimits:
    """Times in seconds; `factor` and `patience` multiply the learned step time."""

    factor: float = 8.0
    floor: float = 5.0
    ceiling: float = 1800.0
    first_step: float = 1800.0  # from the launch's first sign to its first step
    checkpoint: float = 900.0
    node_silent: float = 10.0
    patience: float = 3.0  # times `factor`, while silence is the only sign
    settle: float = 120.0  # minimum limit in the first seconds of stepping, at most four times the launch's startup
    missing: float = 60.0  # for the first table of an expected node, after the first of any node


@dataclass(frozen=True)
class NodeSilent:
    node: str
    silent_for: float
    limit: float


@dataclass(frozen=True)
class NodeBack:
    node: str


@dataclass(frozen=True)
class RanksResumed:
    """Every rank of the last `Stall` has moved again, or has finished."""

    ranks: tuple[int, ...]
    step: int
    seconds: float


@dataclass(frozen=True)
class FirstStep:
    """The first step of a launch. After a restart of the job it ends the incident."""

    step: int


StallFinding = NodeSilent | NodeBack | Stall | RanksResumed | FirstStep


@dataclass(frozen=True)
class Source:
    """One table, and when its last update was seen, on the detector's clock."""

    node: str
    seq: int
    arrived: float
    closed: bool
    finished: bool  # all its ranks are done


@dataclass(frozen=True)
class HeardBefore:
    """Seconds before now at which new tables, by key, and signs of life of ranks were seen; 0 if absent."""

    tables: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[int, float] = field(default_factory=dict)


NOW = HeardBefore()


class Pulse(NamedTuple):  # not a dataclass: an operator creates thousands per second
    """One rank: its last row, when it last moved, and since when its process is stopped or gone (detector's clock)."""

    beat: RankBeat
    node: str
    source: str
    moved: float
    dead_since: float | None
    judged: bool  # neither done nor gone


@dataclass(frozen=True)
class StallState:
    step: int = -1  # the highest step that every rank with heartbeats has reached, or -1
    limit: float = 0.0  # allowed silence in seconds
    since_start: bool = False  # `step` counts from the start of the processes
    expected: tuple[str, ...] = ()
    clock: float = 0.0
    looked: float | None = None  # the observer's clock at the last call
    launch: tuple[str, int] | None = None  # attempt, launch
    sources: Mapping[str, Source] = field(default_factory=dict)
    pulses: Mapping[int, Pulse] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    heard_since: float | None = None  # when the first table came
    began: float | None = None  # when the launch was first seen; None: too late
    stepping_since: float | None = None  # when the launch's first step was seen
    stepped: float = 0.0  # when `step` last grew
    aside: bool = False  # a checkpoint or restore happened since `step` last grew: no sample of a step time
    suspect: float = -1.0  # when something besides silence was last wrong: nothing is learned from a gap around it
    stalled: tuple[int, ...] = ()  # ranks of the present stall
    stalled_at: float = 0.0
    ended_at: int | None = None  # the step after which the launch before was ended for its silence alone
    times: StepTimes = field(default_factory=StepTimes)
