"""The events that the launcher's state machine decides about. Frozen; `at` is in seconds, on the launcher's clock."""

from dataclasses import dataclass

from transom_cli.core.clocks import NodeClock
from transom_cli.core.costs import Waits
from transom_cli.core.events import NodeFault, RankExit, Stall, Taken

THIS_LAUNCHER = "this launcher"  # in place of a survivor's node: our own failure, for which no node is blamed


@dataclass(frozen=True)
class Event:
    at: float


@dataclass(frozen=True)
class AttemptStarted(Event):
    """The attempt has its nodes."""

    durable: int = -1  # the newest checkpoint's step, or -1
    step: int = -1  # the newest step of the attempts before, or -1
    stuck: int = 0  # number of attempts before this one, in a row, without progress
    isolated: tuple[str, ...] = ()  # nodes that should carry no rank
    insist: bool = False  # nobody else keeps them out, so they carry none even if there are too few others
    lacked: bool = False  # too few others ended the attempt before this one
    memory: bool = False  # agents run, so that the nodes may hold snapshots
    taken: tuple[Taken, ...] = ()  # decisions of the attempts before; their times are relative to this one, below zero
    made: int = -1  # steps of the last attempt that made any, if steps count from the start of the processes; else -1
    probation: tuple[str, ...] = ()  # nodes that are no longer excluded, and carry no rank while others do
    ends_at: float | None = None  # when the job's time is up; None: unknown


@dataclass(frozen=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class SpareChecked(Event):
    """A spare was probed: it is ready to replace a node, or it is not good."""

    node: str
    good: bool
    words: str = ""


@dataclass(frozen=True)
class NodeReturned(Event):
    """A node of the job that did not answer answers again. Slurm can use it, and no rank survives there."""

    node: str


@dataclass(frozen=True)
class TopUpSubmitted(Event):
    """Answer to `SubmitTopUp`. job_id: 0 if Slurm refused, for the reason in `words`."""

    job_id: int
    words: str = ""


@dataclass(frozen=True)
class TopUpStarted(Event):
    """A top-up job has started on these nodes, and their agents answer."""

    job_id: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TopUpEnded(Event):
    """A top-up job is over, whatever ended it: its nodes are not ours any more."""

    job_id: int
    words: str = ""


@dataclass(frozen=True)
class QueueSeen(Event):
    """For how long the running jobs of this partition waited in the queue."""

    waits: Waits


@dataclass(frozen=True)
class TasksSeen(Event):
    """The first sign of a launch's tasks: a log, a heartbeat, an exit."""

    launch: int


@dataclass(frozen=True)
class StartFailed(Event):
    """The training step could not be requested."""

    launch: int
    words: str


@dataclass(frozen=True)
class SlurmAway(Event):
    """The training step could not be requested since slurmctld does not answer. The request is repeated."""

    launch: int
    words: str


@dataclass(frozen=True)
class RanksExited(Event):
    """The rank exits of a launch so far. over: its srun has ended too, with exit code `srun_code`."""

    launch: int
    exits: tuple[RankExit, ...]
    over: bool = False
    srun_code: int | None = None


@dataclass(frozen=True)
class Stalled(Event):
    """The ranks of a launch have stopped stepping."""

    launch: int
    stall: Stall


@dataclass(frozen=True)
class NodeUnreachable(Event):
    """A node has been silent for `silent_for` seconds while others report, and its slurmd does not answer either."""

    node: str
    silent_for: float
    limit: float = 0.0  # seconds without a step that are not unusual; 0 if that is not known yet


@dataclass(frozen=True)
class Stepped(Event):
    """Every rank of the launch has done this step. since_start: it counts from the start of the processes."""

    launch: int
    step: int
    since_start: bool = False


@dataclass(frozen=True)
class CheckpointDurable(Event):
    step: int


@dataclass(frozen=True)
class LaunchEnded(Event):
    """Answer to `EndLaunch`.

    survivors: (node, process that survives there); the node is THIS_LAUNCHER if the launcher itself failed.
    """

    launch: int
    exits: tuple[RankExit, ...] = ()
    unheard: tuple[str, ...] = ()  # nodes whose agent did not confirm the end
    survivors: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()  # one line per rank, if requested
    suspects: tuple[str, ...] = ()  # after a hang, nodes that the others waited for, by the evidence
    clocks: tuple[NodeClock, ...] = ()  # of the nodes, as measured

    @property
    def complete(self) -> bool:
        return not self.unheard and not self.survivors

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Nodes on which processes of the launch may survive."""
        return (*self.unheard, *(node for node, _ in self.survivors))


@dataclass(frozen=True)
class HangJudged(Event):
    """Answer to `JudgeHang`: the ranks that the others wait for, () if that is uncertain; the rest is as in
    `LaunchEnded`."""

    launch: int
    ranks: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class RanksKilled(Event):
    """Answer to `KillRanks`: the exits of the launch, with those of the killed ranks."""

    launch: int
    exits: tuple[RankExit, ...] = ()
    unheard: tuple[str, ...] = ()  # nodes of these ranks that did not answer
    words: str = ""  # what went wrong


@dataclass(frozen=True)
class LogsRead(Event):
    """Answer to `ReadLogs`: category, line and last as in `core.events.Examined`.

    hearing: ranks of a launch that is alive which could enter their training again; elastic: without the others too.
    """

    launch: int
    category: str
    line: str
    where: str = ""
    port_taken: bool = False  # the line says that another program uses the launch's rendezvous port
    hearing: tuple[int, ...] = ()
    elastic: bool = False
    last: str = ""


@dataclass(frozen=True)
class RanksEntered(Event):
    """These ranks have been seen in the launch. stepped: those of them that have made a step in it."""

    launch: int
    ranks: tuple[int, ...]
    stepped: tuple[int, ...] = ()


@dataclass(frozen=True)
class StandbyTook(Event):
    """The ranks that this launch starts were standbys; took: False if one of them started from scratch after all."""

    launch: int
    took: bool = True


@dataclass(frozen=True)
class NodesChecked(Event):
    """Answer to `CheckNodes`: the faults found.

    switches: above a node, from the top down. links, switches: empty if the user has chosen the order of the nodes.
    """

    key: str
    faults: tuple[NodeFault, ...] = ()
    words: str = ""  # a summary
    links: tuple[tuple[str, str, float], ...] = ()  # seconds of a message between two nodes
    switches: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class FaultsFound(Event):
    """An agent found faults of its own node, which trains or is a spare."""

    faults: tuple[NodeFault, ...]


@dataclass(frozen=True)
class AnomalyReported(Event):
    """An anomaly of a launch that steps: `what` is one of `diagnose.oddity.ODDITIES`.

    step: at which it was found. For a bad loss: before: the newest step whose state is from before the trouble, or -1;
    back_to: the newest step up to that with a checkpoint, or -1.
    """

    launch: int
    key: str  # identifies the anomaly across events
    what: str
    words: str
    step: int
    nodes: tuple[str, ...] = ()  # the likely cause
    before: int = -1
    back_to: int = -1
    over: bool = False  # it has ended


@dataclass(frozen=True)
class Response:
    """What a rule does about an anomaly. words: which rule, and why. skip: as `Rule.skip_batches`."""

    anomaly: AnomalyReported
    action: str
    rule: str
    words: str
    skip: bool = True


@dataclass(frozen=True)
class TimeLimitNear(Event):
    """The time limit is near: USR2, as requested with `sbatch --signal`."""


@dataclass(frozen=True)
class NodesDraining(Event):
    """Somebody drains nodes of the job. words: which ones, and why."""

    nodes: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class CheckpointPlanned(Event):
    """Answer to `RequestCheckpoint`: the step at which all ranks will save, or -1 and the reason in `words`."""

    launch: int
    step: int
    words: str = ""
    keeps: bool = False  # ranks survive TERM until they have saved, and must be ended
    again: bool = False  # a repeated request may succeed
    alone: bool = False  # the ranks have no Checkpointer, and handle the warning before the time limit by themselves


@dataclass(frozen=True)
class MemoryPersisted(Event):
    """Answer to `PersistMemory`: the newest durable step (-1: not known)."""

    launch: int
    step: int
    words: str = ""  # what was done, or why it failed; "" if there was nothing to do


@dataclass(frozen=True)
class StopRequested(Event):
    """Slurm or a person ends the attempt: TERM or INT.

    outside: Slurm did not send it, so the ranks did not get it.
    """

    signal: str
    outside: bool = False


@dataclass(frozen=True)
class GracePeriodOver(Event):
    """The time between TERM and Slurm's KILL is almost up."""
