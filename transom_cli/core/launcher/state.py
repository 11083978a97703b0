"""What the launcher's core remembers of an attempt, and the settings that its judgement depends on. Frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from transom_cli.core.events import NodeFault, RankExit, Taken
from transom_cli.core.incident import Incident
from transom_cli.core.launcher.events import Acting, Begun, Ended, Reported
from transom_cli.core.policy import Rule
from transom_cli.layout import attempt_name


@dataclass(frozen=True)
class LadderPolicy:
    """relaunches: how many without progress, for each cause, before the attempt is handed up; 0: none at all.

    max_without_progress: attempts in a row; beyond them a launcher without an operator holds the job.
    settle: seconds after the first bad exit in which the other ranks' ends are still waited for.
    late: seconds for the ranks' words to come through a network file system, once their srun has ended.
    come_up: seconds for a relaunched step to start its tasks; or three times what the first launch took.
    silent: seconds for which nothing is heard of a node and no rank steps, before a ready spare takes its place;
    without one, three times as long: an operator looks at the node before that, and knows more.
    ask_again: seconds until ranks that could not be asked to save are asked again.
    ending, reading: seconds after which the end of a launch, or the reading of its logs, counts as failed.
    preflight: whether nodes are examined before the first launch. deep: whether suspects are, after a failure that
    speaks against them. checking, checking_deep: seconds after which an examination, which has deadlines of its own, is
    not waited for.
    flushing: seconds for ranks that are told to end to make a checkpoint, before what is in memory is made durable
    without them; that is waited for `keeping` seconds when nothing else is left to do.
    rules: as in `core.state.Policy`, which is the operator's.
    """

    relaunches: int = 3
    max_without_progress: int = 3
    settle: float = 0.3
    late: float = 5.0
    come_up: float = 120.0
    silent: float = 15.0
    ask_again: float = 5.0
    ending: float = 120.0
    reading: float = 30.0
    flushing: float = 8.0
    keeping: float = 15.0
    preflight: bool = False
    deep: bool = False
    checking: float = 60.0
    checking_deep: float = 330.0
    rules: tuple[Rule, ...] = ()


class Rung(enum.Enum):
    """Where the attempt stands."""

    CHECKING = "checking"  # nodes are examined, and no rank runs
    TRAINING = "training"
    ENDING = "ending"  # what is left of a launch is being removed
    READING = "reading"  # the logs of a failed one are being read
    KEEPING = "keeping"  # nothing else is left to do, and what the nodes hold in memory is being made durable
    LEFT = "left"  # the outcome is ordered: nothing follows


class Leaving(enum.Enum):
    """Why the attempt is to be left as soon as the training's state is durable. Values are causes in the outcome."""

    NOT = ""
    TIME_LIMIT = "time_limit"
    MAINTENANCE = "maintenance"
    REPORTED = "reported"  # it is slow, or its loss goes wrong, and a rule asks for more than a report
    TOLD = "told"  # TERM: it is left in any case


class Memory(enum.Enum):
    """What the nodes hold for the ranks, as far as it is not durable."""

    NONE = "none"  # no agent sees to it, or all was done that can be
    HELD = "held"  # maybe
    ASKED = "asked"  # to be made durable


@dataclass(frozen=True)
class LadderState:
    job_id: int
    restart: int
    allocated: tuple[str, ...]  # in Slurm's order, which is the order of the ranks
    wanted: int  # nodes that carry ranks
    tasks_on_node: int  # whose ends are recorded: one a rank; under torchrun one a node
    policy: LadderPolicy = LadderPolicy()
    nodes: tuple[str, ...] = ()  # of the present launch
    spares: tuple[str, ...] = ()  # carry no rank, and are not known to be bad
    ready: tuple[str, ...] = ()  # those of them that were looked at
    given_up: tuple[str, ...] = ()  # a spare has taken their place
    inherited: tuple[str, ...] = ()  # those of them that an earlier attempt has blamed
    draining: tuple[str, ...] = ()  # nodes of ours that somebody drains
    faults: tuple[NodeFault, ...] = ()  # what checks have found against nodes of the allocation
    doubted: tuple[tuple[NodeFault, float], ...] = ()  # agents' suspicions among them: when they were heard last
    batch_host: str = ""  # stays in the job to its end
    begun: Begun | None = None
    rung: Rung = Rung.TRAINING
    since: float = 0.0  # on this rung
    launch: int = -1
    appeared: bool = False  # tasks of this launch were seen
    away: bool = False  # a Slurm that gives no answer has kept this launch from starting
    came_up: float = 0.0  # seconds that the first launch took to be seen
    step: int = -1  # of this launch
    max_step: int = -1  # of this attempt
    since_start: bool = False  # both count from the start of the processes: see core.progress
    made: int = -1  # then: the steps of the last launch before this one that made any
    stepped_at: float = 0.0  # when that was seen
    durable: int = -1
    began_durable: int = -1  # when the attempt began
    began_step: int = -1  # the newest step of the attempts before
    began_made: int = -1  # as `Begun.made`
    stuck: int = 0  # attempts in a row before this one that came to no newer checkpoint
    exits: tuple[RankExit, ...] = ()
    over_since: float | None = None  # its srun has ended
    srun: int | None = None
    failing_since: float | None = None
    told: str = ""
    told_at: float = 0.0
    warned: bool = False  # of the time limit
    leaving: Leaving = Leaving.NOT
    leaving_from: int = -1  # the newest durable step when it was decided to leave
    saving: int | None = None  # the step at which all ranks save; -1: they cannot be asked; None: not known yet
    cannot_save: str = ""  # why not
    ask_again: float | None = None  # when
    alone: bool = False  # the ranks handle the warning before the time limit by themselves
    progress: int = -1  # what the last relaunch could count on
    spent: tuple[tuple[str, int], ...] = ()  # relaunches without progress, by cause
    incident: Incident | None = None
    incidents: tuple[Incident, ...] = ()
    taken: tuple[Taken, ...] = ()  # what the policy decided in the attempts before, at times of this launcher's clock
    ignored: tuple[Taken, ...] = ()  # what it let pass in this one, since it is to be ignored
    reports: tuple[Reported, ...] = ()  # what is odd about this launch
    acting: Acting | None = None  # what is being done about one of them
    after: Ended | None = None  # how the launch in question was ended
    memory: Memory = Memory.NONE
    kept: str = ""  # what came of it
    parting: tuple[str, str, str] | None = None  # status, reason and cause of an outcome that waits for it

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restart)

    @property
    def tasks(self) -> int:
        return self.wanted * self.tasks_on_node

    @property
    def saved(self) -> bool:
        """Whether the checkpoint that all ranks were to make stands."""
        return self.saving is not None and 0 <= self.saving <= self.durable

    def in_order(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in self.allocated if n in nodes)
