"""The operator's state: everything it knows of a run. Frozen; only `decide` makes a new one."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from transom_cli.core.decided import Taken
from transom_cli.core.events import NodeFault
from transom_cli.core.incident import Incident, Look
from transom_cli.core.operator.actions import Action
from transom_cli.core.policy import Rule
from transom_cli.layout import attempt_name


class Phase(enum.Enum):
    """The word that answers "is my run all right?"; the same in journal, JSON and on the screen."""

    SUBMITTING = "submitting"
    PENDING = "pending"
    STARTING = "starting"
    TRAINING = "training"
    RECOVERING = "recovering"
    FINISHING = "finishing"
    STOPPING = "stopping"
    HELD = "held"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self in (Phase.DONE, Phase.FAILED, Phase.STOPPED)


@dataclass(frozen=True)
class Policy:
    """The settings that decisions depend on. Times in seconds."""

    max_without_progress: int = 3
    backoff: float = 5.0
    backoff_cap: float = 300.0
    release_held: bool = False
    drain: bool = True
    cap_nodes: int = 2
    cap_fraction: float = 0.10
    cap_window: float = 3600.0
    expiry: float = 3600.0
    rules: tuple[Rule, ...] = ()  # the first that fits decides; none: what the evidence speaks for


@dataclass(frozen=True)
class Exclusion:
    """A node that this run keeps away from. `until` None: until a person lifts it."""

    node: str
    since: float
    until: float | None
    how: str  # drained or excluded
    incident: str
    reason: str
    cause: str = ""  # as in Diagnosis
    detail: str = ""  # who else drains it, or why it could not be drained
    faults: tuple[NodeFault, ...] = ()  # of this node, the proven ones first


@dataclass(frozen=True)
class SavesFail:
    """The training's saves fail, and none was good since. count: in a row. step: of the last that failed. good: the
    step of the newest good one, -1: none. attempt: in which the first of them failed, at `since`."""

    since: float
    attempt: str
    count: int
    step: int
    why: str
    good: int

    @property
    def words(self) -> str:
        last = f"last good step {self.good:,}" if self.good >= 0 else "no good save so far"
        return f"{self.why}, {self.count:,} in a row, {last}"


@dataclass(frozen=True)
class State:
    policy: Policy = field(default_factory=Policy)
    num_nodes: int = 0  # asked for, spares included; 0: an unmodified script that leaves it to Slurm
    spares: int = 0
    waived: str = ""  # the attempt that is to start without waiting for spares
    phase: Phase = Phase.SUBMITTING
    since: float = 0.0  # of the phase
    epoch: int = 0
    job_id: int = 0
    restarts: int = 0
    slurm_state: str = ""
    slurm_reason: str = ""
    slurm_lost: str = ""  # the error, while Slurm does not answer
    nodes: tuple[str, ...] = ()  # of the present (or, while pending, the last) attempt
    idle: tuple[str, ...] = ()  # those of them that carry no rank: spares, and nodes that a spare stands in for
    idle_looks: tuple[Look, ...] = ()  # what the probes of such nodes said
    idle_faults: tuple[NodeFault, ...] = ()  # what checks found against them
    batch_host: str = ""
    suspended_at: str = ""  # when Slurm last suspended or resumed the job, in Slurm's own words
    running: float | None = None  # when this attempt was first seen to run
    launched: bool = False  # the training step of this attempt was started
    launch: int = 0  # the newest launch of this attempt
    healed: int = 0  # the number of the newest fault that this attempt's launcher took up
    step: int = -1  # of this attempt
    max_step: int = -1  # of the run
    since_start: bool = False  # steps count from the start of the processes: see core.progress
    made: int = -1  # then: the most steps that a launch of this attempt has made
    made_before: int = -1  # and of the last attempt before it that made any
    durable: int = -1  # newest published checkpoint
    saves_fail: SavesFail | None = None
    progress: int = -1  # what the last restart could count on
    no_progress: int = 0
    spared: int = 0  # restarts in a row after a preflight that found bad nodes, which were not counted in no_progress
    starts: int = 0  # attempts that were given to Slurm by us or by itself, the first not counted
    stop_asked: bool = False
    incident: Incident | None = None
    incidents: tuple[Incident, ...] = ()  # closed ones, oldest first
    taken: tuple[Taken, ...] = ()  # what was decided of others, in the attempts before a launcher's own
    exclusions: tuple[Exclusion, ...] = ()
    isolations: tuple[float, ...] = ()  # when nodes were isolated, within the cap's window
    submissions: tuple[tuple[str, int], ...] = ()  # as in SubmissionAnswered: the action's key, the job's id
    lifts: tuple[str, ...] = ()  # requests to lift exclusions that were heard
    pending: tuple[Action, ...] = ()  # ordered, outcome not yet known
    patches: int = 0
    released: str = ""  # the attempt whose hold we have lifted after its start was given to Slurm
    let_go: str = ""  # the attempt that was last known to be held by nobody, and was not seen waiting since
    rolled_back: str = ""  # the attempt that ran, and that Slurm said later had never begun
    verdict: str = ""  # why the run is held, failed or stopped
    exit_code: int | None = None  # of the run, when it is over

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restarts) if self.job_id else ""

    @property
    def suspended(self) -> bool:
        """Slurm has stopped the job: launcher, agents and ranks. Their silence is no evidence."""
        return self.slurm_state == "SUSPENDED"

    @property
    def excluded(self) -> tuple[str, ...]:
        return tuple(x.node for x in self.exclusions)
