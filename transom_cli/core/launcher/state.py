"""The launcher's state of one attempt, and the policy that its decisions depend on. Frozen values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from transom_cli.core.costs import Waits
from transom_cli.core.events import NodeFault, RankExit, Taken
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.launcher.actions import Action
from transom_cli.core.launcher.events import AnomalyReported, AttemptStarted, LaunchEnded, Response, StopRequested
from transom_cli.core.placement import Network
from transom_cli.core.policy import Rule
from transom_cli.core.progress import Progress
from transom_cli.layout import attempt_name

DOUBT = 600.0  # seconds for which an agent's suspicion counts


@dataclass(frozen=True)
class Policy:
    """Settings. Times are in seconds.

    relaunches: per cause and without progress, before the attempt ends; 0 disables relaunching.
    max_without_progress: attempts in a row, after which a launcher without an operator holds the job.
    ports_taken: relaunches in a row that cost no budget, since another program used the rendezvous port.
    settle: time after the first bad exit in which the other ranks' exits are still collected. settle_alive: the same if
        survivors may stay; then exits are also collected while the logs are read.
    late: time for exit records to arrive through a network file system after srun ended.
    come_up: time limit for a relaunched step to start its tasks. The limit is at least three times the first startup.
    silent: a node that is silent for so long, while no rank steps, is replaced by a ready spare or left out. If neither
        is possible, the limit is three times as long: an operator probes the node earlier and knows more.
    recoverable: ranks that survive a failure may stay and enter their training again, within `reenter` seconds.
    ask_again: interval between requests for a final checkpoint.
    ending, reading: time limits for ending a launch and for reading its logs.
    preflight: check nodes before the first launch. deep: check suspects after a failure.
    checking, checking_deep: time limits for these checks, which also have deadlines of their own.
    flushing: time for ranks to write the final checkpoint after a stop request. Then the nodes persist their memory.
    keeping: time for that once nothing else remains to be done, unless checkpoints are known to take longer.
    grow: use nodes that return. top_up: also submit a job for those that the run lacks.
    rules: the policy table, shared with the operator.
    """

    relaunches: int = 3
    max_without_progress: int = 3
    ports_taken: int = 5
    settle: float = 0.3
    settle_alive: float = 0.1
    late: float = 5.0
    come_up: float = 120.0
    silent: float = 15.0
    recoverable: bool = False
    reenter: float = 15.0
    ask_again: float = 5.0
    ending: float = 120.0
    reading: float = 30.0
    flushing: float = 8.0
    keeping: float = 15.0
    grow: bool = True
    top_up: bool = False
    preflight: bool = False
    deep: bool = False
    checking: float = 60.0
    checking_deep: float = 330.0
    rules: tuple[Rule, ...] = ()


class Phase(enum.Enum):
    CHECKING = "checking"  # nodes are being checked; no rank runs
    TRAINING = "training"
    ENDING = "ending"  # the processes of a launch are being removed
    READING = "reading"  # the logs of a failed launch are being read
    PERSISTING = "persisting"  # nothing remains but to write the nodes' snapshots to disk
    OVER = "over"  # the outcome is ordered; nothing follows


class Reason(enum.Enum):
    """Why the attempt ends as soon as the training state is durable. Values are causes in the outcome."""

    NONE = ""
    TIME_LIMIT = "time_limit"
    MAINTENANCE = "maintenance"
    GROW = "grow"  # nodes have come back: the launch continues on more of them
    ANOMALY = "reported"  # slow, or a bad loss, and a rule asks for more than a report
    STOP = "stop_request"  # a stop request: the attempt ends in any case


class Memory(enum.Enum):
    """Snapshots in the nodes' memory that are not durable yet."""

    NONE = "none"  # no agents, or nothing more can be done
    HELD = "held"  # there may be some
    REQUESTED = "requested"  # the nodes are to write them to disk


@dataclass(frozen=True)
class Nodes:
    """The allocation's nodes by role."""

    allocated: tuple[str, ...]  # in Slurm's order, which is the order of the ranks
    wanted: int  # number of nodes that carry ranks
    fewest: int = 0  # that may carry ranks if others are lost; 0: as many as wanted
    unit: int = 1  # nodes that carry ranks are a multiple of this
    training: tuple[str, ...] = ()  # carry the ranks of the present launch
    spares: tuple[str, ...] = ()  # carry no rank, and are not known to be bad
    ready: tuple[str, ...] = ()  # spares whose agent answers
    given_up: tuple[str, ...] = ()  # carry no rank any more in this attempt
    silent: tuple[str, ...] = ()  # given up only because they did not answer
    inherited: tuple[str, ...] = ()  # given up because an earlier attempt blamed them
    draining: tuple[str, ...] = ()  # drained by somebody else
    probation: tuple[str, ...] = ()  # were excluded in this run: spares before they carry a rank
    batch_host: str = ""  # stays in the job until the job ends

    @property
    def usable(self) -> tuple[str, ...]:
        """Ready spares that nobody drains; those on probation last."""
        good = (n for n in self.ready if n not in self.draining)
        return tuple(sorted(good, key=lambda n: n in self.probation))

    @property
    def lacking(self) -> int:
        """How many more nodes a run that may shrink could use now."""
        return self.wanted - len(self.training) if self.fewest else 0

    def number_for(self, count: int) -> int:
        """Return how many of `count` good nodes can carry ranks; 0: they are too few."""
        if not self.fewest:
            return self.wanted if count >= self.wanted else 0
        possible = min(count, self.wanted) // self.unit * self.unit
        return possible if possible >= self.fewest else 0

    @property
    def can_lose_one(self) -> bool:
        """Whether a spare would take its place, or the others may train without it."""
        return bool(self.ready) or (self.fewest > 0 and self.number_for(len(self.training) - 1) > 0)

    def in_order(self, nodes: Iterable[str]) -> tuple[str, ...]:
        chosen = set(nodes)
        return tuple(n for n in self.allocated if n in chosen)

    def of_launch(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of `nodes` that carry ranks now, without repetitions."""
        return tuple(n for n in dict.fromkeys(nodes) if n in self.training)

    def with_ready(self, node: str) -> Nodes:
        return replace(self, spares=self.in_order((*self.spares, node)), ready=self.in_order((*self.ready, node)))

    def without_spares(self, nodes: tuple[str, ...]) -> Nodes:
        spares = tuple(n for n in self.spares if n not in nodes)
        return replace(self, spares=spares, ready=tuple(n for n in self.ready if n not in nodes))

    def giving_up(self, nodes: tuple[str, ...]) -> Nodes:
        return replace(self, given_up=(*self.given_up, *(n for n in nodes if n not in self.given_up)))

    def joined_by(self, nodes: tuple[str, ...]) -> Nodes:
        """Add good nodes, which are spares once a probe finds them ready."""
        allocated = (*self.allocated, *(n for n in nodes if n not in self.allocated))
        kept = replace(self.forgetting(nodes), allocated=allocated)
        return replace(kept, spares=kept.in_order((*kept.spares, *nodes)))

    def forgetting(self, nodes: Iterable[str]) -> Nodes:
        """Remove nodes that carry no rank from all roles."""
        out = set(nodes) - set(self.training)

        def kept(role: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(n for n in role if n not in out)

        return replace(
            self,
            allocated=kept(self.allocated),
            spares=kept(self.spares),
            ready=kept(self.ready),
            given_up=kept(self.given_up),
            silent=kept(self.silent),
            draining=kept(self.draining),
        )


@dataclass(frozen=True)
class Launch:
    """One launch of the training step. Replaced as a whole by the next one."""

    number: int = -1  # -1: none yet
    tasks_seen: bool = False
    slurm_away: bool = False  # slurmctld did not answer when the step was requested
    exits: tuple[RankExit, ...] = ()
    failing_since: float | None = None  # when the first bad exit was seen
    over_since: float | None = None  # when its srun was seen to have ended
    srun_code: int | None = None
    stepped_at: float = 0.0  # when its newest step was seen
    startup: float = 0.0  # seconds until the tasks of the attempt's first launch were seen
    to_step: float = 0.0  # seconds from the order to start a launch to its first step, when last measured
    began: tuple[float, int] | None = None  # its first step: when, and which
    newest: int = -1  # step
    anomalies: tuple[AnomalyReported, ...] = ()  # present ones
    response: Response | None = None  # what is being done about one of them
    ended: LaunchEnded | None = None  # how its processes were removed
    culprits: tuple[int, ...] = ()  # ranks that were to be killed, so that the others can stay
    unheard: tuple[str, ...] = ()  # nodes that did not answer then
    port_taken: bool = False  # it failed since another program used its rendezvous port
    kept: tuple[int, ...] = ()  # ranks whose processes were those of the launch before (`reentry`)
    awaited: tuple[int, ...] = ()  # those of them that have not entered it yet
    replaced: tuple[int, ...] = ()  # the other ranks of such a launch
    absent: tuple[int, ...] = ()  # those of them without which the kept ones train
    fruitless: int = 0  # launches right before it that kept survivors, and made no step
    standby: bool = False  # the ranks that it started were standbys

    @property
    def started(self) -> bool:
        return self.tasks_seen or bool(self.exits)

    def next(self) -> Launch:
        return Launch(self.number + 1, startup=self.startup, to_step=self.to_step)

    def stepped(self, at: float, since: float, step: int) -> Launch:
        """Note a step. since: when the launch was ordered."""
        if self.began is None:
            return replace(self, stepped_at=at, began=(at, step), to_step=at - since)
        return replace(self, stepped_at=at, newest=step)

    @property
    def step_time(self) -> float:
        """Seconds per step; 0.0 if unknown."""
        at, step = self.began or (0.0, 0)
        return (self.stepped_at - at) / (self.newest - step) if self.newest > step else 0.0

    def without_anomaly(self, key: str) -> Launch:
        return replace(self, anomalies=tuple(a for a in self.anomalies if a.key != key))


@dataclass(frozen=True)
class Budget:
    """Relaunches since the last progress."""

    relaunches: tuple[tuple[str, int], ...] = ()  # by cause, on the same nodes
    ports_taken: int = 0  # launches in a row that failed since their rendezvous port was taken, and cost nothing

    def spent(self, cause: str) -> int:
        return dict(self.relaunches).get(cause, 0)


@dataclass(frozen=True)
class Departure:
    """An end on purpose, and the final checkpoint before it."""

    reason: Reason = Reason.NONE
    durable_before: int = -1  # the newest checkpoint when the departure began
    save_step: int | None = None  # the step at which all ranks save; -1: impossible; None: not known yet
    cannot_save: str = ""  # why it is impossible
    ask_again: float | None = None  # when to repeat the request
    ranks_heed_warning: bool = False  # the ranks handle the warning before the time limit by themselves


@dataclass(frozen=True)
class Growth:
    """How a run that trains on too few nodes gets more (`core.launcher.growth`)."""

    requested: bool = False  # a top-up job is being submitted
    top_up: int = 0  # its job ID, while it exists; 0: none
    joined: tuple[str, ...] = ()  # its nodes, once it has started
    lost: tuple[str, ...] = ()  # nodes of a top-up job that is over, which carried ranks when it ended
    tries: int = 0  # top-up jobs in a row from which no rank has stepped
    due: float = 0.0  # when the next one may be submitted
    checking: tuple[str, ...] = ()  # nodes that are being checked
    returned: tuple[str, ...] = ()  # nodes of the job that have come back; none does so twice
    waits: Waits = ()  # in the queue of the partition


@dataclass(frozen=True)
class Health:
    faults: tuple[NodeFault, ...] = ()  # of nodes of the allocation
    doubts: tuple[tuple[NodeFault, float], ...] = ()  # agents' suspicions among them, and when they were last reported

    def of(self, nodes: tuple[str, ...]) -> tuple[NodeFault, ...]:
        return tuple(f for f in self.faults if f.node in nodes)

    def with_faults(self, faults: tuple[NodeFault, ...]) -> Health:
        return replace(self, faults=(*self.faults, *(f for f in faults if f not in self.faults)))

    def with_doubts(self, faults: tuple[NodeFault, ...], at: float) -> Health:
        return replace(self, doubts=(*self.doubts, *((f, at) for f in faults if not f.proven)))

    def heard_again(self, faults: tuple[NodeFault, ...], at: float) -> Health:
        """Restart the time of suspicions that an agent repeats."""
        again = {(f.node, f.check, f.device) for f in faults if not f.proven}
        return replace(
            self, doubts=tuple((f, at if (f.node, f.check, f.device) in again else then) for f, then in self.doubts)
        )

    def current(self, at: float, allocated: int) -> Health:
        """Drop suspicions that are older than `DOUBT` seconds.

        A suspicion that holds on most nodes concerns what they share, such as a switch, and accuses none of them.
        """
        of_check: dict[str, set[str]] = {}
        for f, _ in self.doubts:
            of_check.setdefault(f.check, set()).add(f.node)
        shared = {check for check, nodes in of_check.items() if len(nodes) >= 2 and len(nodes) * 2 > allocated}
        late = {f for f, last_seen in self.doubts if at - last_seen > DOUBT}
        gone = late | {f for f, _ in self.doubts if f.check in shared}
        faults = tuple(f for f in self.faults if f not in gone)
        return replace(
            self, faults=faults, doubts=tuple((f, last_seen) for f, last_seen in self.doubts if f not in late)
        )


@dataclass(frozen=True)
class History:
    """What was decided so far, at times of this launcher's clock."""

    incidents: tuple[Incident, ...] = ()  # closed ones of this attempt
    earlier: tuple[Taken, ...] = ()  # in the attempts before, and in earlier job steps of this one
    numbered: int = 0  # incidents of earlier job steps of this attempt
    ignored: tuple[Taken, ...] = ()  # failures of this attempt that a rule let pass

    @property
    def next_name(self) -> str:
        return f"l{self.numbered + len(self.incidents) + 1}"

    @property
    def taken(self) -> tuple[Taken, ...]:
        return *self.earlier, *self.ignored


@dataclass(frozen=True)
class Parting:
    """An outcome that waits until the nodes have persisted their memory."""

    status: str
    why: str
    cause: str


@dataclass(frozen=True)
class State:
    job_id: int
    restart: int
    nodes: Nodes
    tasks_on_node: int  # tasks whose exits are recorded: one per rank; under torchrun one per node
    policy: Policy = Policy()
    job_step: str = ""  # of the user's own script; "": the attempt has only one
    first: int = 0  # the number of the first launch: earlier job steps of the attempt have used the lower ones
    phase: Phase = Phase.TRAINING
    since: float = 0.0  # when the phase began
    begun: AttemptStarted | None = None
    launch: Launch = Launch()
    progress: Progress = field(default_factory=Progress)
    budget: Budget = Budget()
    departure: Departure = Departure()
    warned: bool = False  # the time limit is near
    stop: StopRequested | None = None
    health: Health = Health()
    network: Network = field(default_factory=Network)
    incident: Incident | None = None
    history: History = History()
    memory: Memory = Memory.NONE
    persisted: str = ""  # the result of persisting the memory, for a person
    pace: float = 0.0  # seconds per step, on average over the newest launch that made two
    durable_after: float = 0.0  # seconds from the newest durable step until it was durable; 0: unknown
    parting: Parting | None = None
    growth: Growth = Growth()

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restart)

    @property
    def tasks(self) -> int:
        return (len(self.nodes.training) or self.nodes.wanted) * self.tasks_on_node

    @property
    def before(self) -> AttemptStarted:
        """What was known of the attempts before this one."""
        return self.begun or AttemptStarted(0.0)

    @property
    def saved(self) -> bool:
        """Whether the final checkpoint is durable."""
        return self.departure.save_step is not None and 0 <= self.departure.save_step <= self.progress.durable

    @property
    def unlaunched(self) -> bool:
        """Whether the first launch has not been started."""
        return self.launch.number < self.first

    @property
    def runs(self) -> bool:
        """Ranks run, and none has failed."""
        return self.phase is Phase.TRAINING and self.launch.failing_since is None

    @property
    def steps(self) -> bool:
        """Ranks run and step, and the attempt is not about to end."""
        leaving = self.stop is not None or self.departure.reason is not Reason.NONE
        return self.runs and self.progress.step >= 0 and not leaving

    @property
    def costs_nothing(self) -> bool:
        """Whether the present launch failed for its rendezvous port, and a relaunch with another one is free."""
        return self.launch.port_taken and self.budget.ports_taken < self.policy.ports_taken

    @property
    def open_incident(self) -> Incident | None:
        """The incident of the present launch. After a relaunch the incident concerns the launch before."""
        found = self.incident
        return found if found is not None and found.stage is not Stage.STARTING else None

    @property
    def withheld(self) -> bool:
        """What was decided about the launch was not carried out, since the run is only observed."""
        return self.incident is not None and self.incident.stage is Stage.WITHHELD

    def enter(self, phase: Phase, at: float) -> State:
        return replace(self, phase=phase, since=at)

    def trains(self, launch: int) -> bool:
        """Whether `launch` is the present one, and training."""
        return launch == self.launch.number and self.phase is Phase.TRAINING


Decision = tuple[State, tuple[Action, ...]]


def after(actions: tuple[Action, ...], decision: Decision) -> Decision:
    """Put `actions` before those of a decision."""
    return decision[0], (*actions, *decision[1])
