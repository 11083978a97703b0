"""What the operator can see. An event is a fact with the observer's arrival time `at` (seconds, never falling).

Events are the core's only input, so an event holds everything that the core needs. The journal holds the events.
"""

from dataclasses import dataclass

from transom_cli.core.costs import Situation
from transom_cli.core.node_hazard import Hazard


@dataclass(frozen=True)
class Decided:
    """What a rule decided about a failure."""

    rule: str = ""  # "" where no rule decided
    action: str = ""
    category: str = ""
    fingerprint: str = ""
    words: str = ""  # which rule and why, for a person; "" where that is no news


UNDECIDED = Decided()


_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 13: "PIPE",
    15: "TERM",
}  # fmt: skip


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 77` for a number that rarely ends a process."""
    return f"SIG{_SIGNALS[number]}" if number in _SIGNALS else f"signal {number}"


@dataclass(frozen=True)
class RankExit:
    """How one rank's process ended, as its own wrapper saw it.

    wall: for order alone; on that node's clock, or within `error` seconds on the launcher's (`core.clocks`).
    """

    rank: int
    node: str
    code: int | None
    signal: int | None
    wall: float = 0.0
    step: int = -1
    since_start: bool = False  # `step` counts the steps since the process started
    mono: float | None = None  # on that node's monotonic clock, if known
    error: float | None = None

    @property
    def bad(self) -> bool:
        return bool(self.code) or self.signal is not None

    @property
    def words(self) -> str:
        how = f"ended with exit code {self.code}" if self.signal is None else f"killed by {signal_name(self.signal)}"
        return f"rank {self.rank} on {self.node} {how}"


@dataclass(frozen=True)
class Taken:
    """What was decided about an earlier failure of the run, and when (seconds, by the reader's clock)."""

    at: float
    decided: Decided
    nodes: tuple[str, ...] = ()
    end: RankExit | None = None  # as in `Diagnosis`


@dataclass(frozen=True)
class NodeFault:
    """What a check found against a node, where that keeps the node from carrying a rank.

    verdict: FAIL (proven) or SUSPECT. check, evidence, remedy, device, serial: as in `health.finding.Finding`.
    """

    node: str
    check: str
    verdict: str
    evidence: str
    remedy: str = "none"
    device: str = ""
    serial: str = ""

    @property
    def proven(self) -> bool:
        return self.verdict == "FAIL"

    @property
    def words(self) -> str:
        """Check and evidence, with the device where the evidence does not name it."""
        text = f"{self.check}: {self.evidence}"
        device = self.device if self.device not in self.evidence else ""
        serial = f"serial {self.serial}" if self.serial and self.serial not in self.evidence else ""
        about = ", ".join(x for x in (device, serial) if x)
        return f"{text} ({about})" if about else text


@dataclass(frozen=True)
class Stall:
    """The ranks make no step any more.

    stopped: the process of a rank is stopped, which is more than a silence, also for a trainer that reports no steps.
    """

    step: int  # the last one that all ranks have done
    seconds: float  # since it, longer than the learned `limit`
    limit: float
    culprits: tuple[int, ...] = ()  # the ranks that stand out, see `core.stall`
    nodes: tuple[str, ...] = ()  # where these are
    overdue: tuple[str, ...] = ()  # nodes whose own table is late: nobody sees what is on them
    unseen: bool = False  # all ranks that do not step are on such nodes
    stopped: bool = False
    paused: float = 0.0  # a silence that this run came back from, if the limit follows from it
    early: bool = False  # the limit is wider, since the first step may be followed by compilations

    @property
    def words(self) -> str:
        names = ", ".join(map(str, self.culprits))
        who = f", rank {names} stands out" if len(self.culprits) == 1 else f", ranks {names} stand out" if names else ""
        why = f": it once paused for {self.paused:.1f} s" if self.paused else ""
        why = ", wider soon after the first step" if self.early else why
        return f"no step for {self.seconds:.1f} s (limit {self.limit:.1f} s{why}) after step {self.step}{who}"


@dataclass(frozen=True)
class Event:
    at: float


@dataclass(frozen=True)
class Started(Event):
    """An operator began to listen: whatever was silent before is not evidence."""

    epoch: int


@dataclass(frozen=True)
class Tick(Event):
    """Time passed. Kept in the journal only when it changed something."""


@dataclass(frozen=True)
class Submitted(Event):
    """`released`: transom no longer holds the job. A script that requests --hold itself is released by its user."""

    key: str
    job_id: int
    released: bool = False


@dataclass(frozen=True)
class SubmissionAnswered(Event):
    """sbatch has answered a submission of action `key` with a job's id. 0: it was sent, and its answer was lost."""

    key: str
    job_id: int
    number: int = 1  # of the submission among those of this action, from 1


@dataclass(frozen=True)
class JobSeen(Event):
    """The job as Slurm reports it. `state` is a JobState name; `reason` is Slurm's own reason."""

    job_id: int
    restarts: int
    state: str
    completing: bool = False
    held: bool = False
    reason: str = ""
    nodes: tuple[str, ...] = ()
    batch_host: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    lost_nodes: tuple[str, ...] = ()  # nodes of this run's last attempt that Slurm itself calls down or draining
    succeeds: int = 0  # the job that was ours, where its launcher, alone, has submitted this one as its successor
    held_why: str = ""  # the launcher's reason, where it was the launcher that holds the job
    by_launcher: bool = False  # the launcher, alone, has requeued it
    suspended_at: str = ""  # when Slurm last suspended or resumed it, in Slurm's own words; "" if it never did

    @property
    def ended(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "SUSPENDED", "UNKNOWN")


@dataclass(frozen=True)
class JobGone(Event):
    """Slurm does not know the job any more (it forgets a finished one after MinJobAge).

    ended: how it ended, if another source knows: a JobState name; then exit_code and exit_signal as in JobSeen, by: who
    cancelled it, and source: who reports it.
    """

    job_id: int
    ended: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    by: str = ""
    source: str = ""


@dataclass(frozen=True)
class SlurmLost(Event):
    """Slurm did not answer. This says nothing about the job. answered: when it last did, if known."""

    error: str
    answered: float = 0.0


@dataclass(frozen=True)
class SlurmBack(Event):
    pass


@dataclass(frozen=True)
class LaunchSeen(Event):
    """The launcher started the training step on `nodes`; `idle` are the allocation's others: spares, given up."""

    attempt: str
    launch: int
    nodes: tuple[str, ...]
    world_size: int
    idle: tuple[str, ...] = ()
    succeeds: int = 0  # as in JobSeen
    faults: tuple[NodeFault, ...] = ()  # what checks found against idle nodes, so that they carry no rank
    job_step: str = ""  # the name of the user's job step, "" if the job has only one
    checkpoints: str = ""  # its folder, "": as set


@dataclass(frozen=True)
class JobStepDone(Event):
    """A job step of the user's own script is done. The attempt continues: its script may start another one."""

    attempt: str
    job_step: str


@dataclass(frozen=True)
class RecoverySeen(Event):
    """The launcher handles a fault inside the allocation.

    step: with a diagnosis, the newest step that the ranks had done, by their own exit records too; -1: unknown.
    """

    attempt: str
    incident: str  # the launcher's own name for it
    what: str  # seen, evidence, examined, diagnosed, swapped (`nodes` carry no rank any more), rolled_back, recovered,
    # or report (the loss became NaN or infinite at `step`; no fault is handled)
    words: str
    cause: str = ""
    nodes: tuple[str, ...] = ()
    faults: tuple[NodeFault, ...] = ()  # of nodes that checks found faulty
    decided: Decided = UNDECIDED  # what the launcher's policy made of it, which is the operator's too
    durable: int | None = None  # where the training was set back, the newest step that it can continue from
    step: int = -1
    since_start: bool = False  # it counts from the processes' start
    end: RankExit | None = None  # with a diagnosis, as there
    situation: Situation | None = None  # when a run shrinks, from which `costs.comparison` makes `words`
    good: int = -1  # of a report: the newest checkpoint from before it; -1: none is known


@dataclass(frozen=True)
class OutcomeSeen(Event):
    """The launcher's account of how the attempt ended: status is done, failed, stopped or left.

    left: on purpose, to continue in another attempt; cause: time_limit, maintenance, isolated_nodes or preflight.
    cause: "hang" when the launcher ended ranks that no longer stepped; then suspects names the nodes that stood out.
    blamed: nodes of the allocation that should carry no rank of the next attempt, for all that the launcher knows.
    taken: what its policy decided in this attempt; the times are seconds before this outcome, below zero.
    """

    attempt: str
    status: str
    why: str
    exits: tuple[RankExit, ...] = ()
    missing: tuple[str, ...] = ()  # nodes whose ranks reported nothing
    nodes: tuple[str, ...] = ()
    cause: str = ""
    suspects: tuple[str, ...] = ()
    durable: int = -1  # the newest checkpoint's step as the launcher knew it, or -1
    blamed: tuple[str, ...] = ()
    step: int = -1  # the newest step of this attempt, or -1
    faults: tuple[NodeFault, ...] = ()  # what checks found against nodes: before the first launch, or beside one
    taken: tuple[Taken, ...] = ()
    since_start: bool = False  # steps count from the start of the processes: `step` is the most of one launch
    job_step: str = ""  # as in LaunchSeen


@dataclass(frozen=True)
class NodeSilent(Event):
    """The node's agent is silent. launcher: the attempt's launcher lives, and sees it too."""

    attempt: str
    node: str
    silent_for: float
    launcher: bool = False


@dataclass(frozen=True)
class NodeBack(Event):
    attempt: str
    node: str


@dataclass(frozen=True)
class Stalled(Event):
    attempt: str
    stall: Stall


@dataclass(frozen=True)
class StallEnded(Event):
    """The ranks step again by themselves."""

    attempt: str


@dataclass(frozen=True)
class StepSeen(Event):
    """The highest step that every rank has reached: the first of an attempt, then one line a minute."""

    attempt: str
    step: int
    since_start: bool = False  # it counts from the start of the processes, as automatic heartbeats do


@dataclass(frozen=True)
class CheckpointSeen(Event):
    """A durable checkpoint was published (its manifest exists)."""

    step: int


@dataclass(frozen=True)
class SavesSeen(Event):
    """The training's saves fail, or do so no longer."""

    attempt: str
    failed: int  # in a row, 0: the last was good
    step: int = -1  # of the last that failed
    why: str = ""
    good: int = -1  # the step of the newest good one, -1: none


@dataclass(frozen=True)
class Examined(Event):
    """What the logs of an attempt say: category is of `diagnose.clue.Category`.

    line: what reports the failure; "" if no line does. last: then what the rank that died first printed last.
    """

    key: str
    category: str
    line: str
    where: str
    last: str = ""


@dataclass(frozen=True)
class Probed(Event):
    key: str
    node: str
    verdict: str  # PASS, MONITOR, SUSPECT, FAIL, UNKNOWN
    evidence: str


@dataclass(frozen=True)
class OtherExclusion:
    """Another user's run excludes the same node, for this many more seconds; None: until a person lifts it."""

    user: str
    seconds: float | None


@dataclass(frozen=True)
class Isolated(Event):
    """A node is kept away from the run: `how` is drained or excluded.

    hazard: the published one, updated by the user's own nodes; None if their history could not be read.
    """

    key: str
    node: str
    how: str
    detail: str
    others: tuple[OtherExclusion, ...] = ()  # as the shared history has them
    hazard: Hazard | None = None
    elsewhere: int = 0  # how often the node was at fault in the user's other runs, within `node_hazard.RECENT`


@dataclass(frozen=True)
class Restarted(Event):
    """The job was given back to Slurm: requeued, succeeded by a new job, or found requeued already."""

    key: str
    job_id: int
    restarts: int
    how: str


@dataclass(frozen=True)
class Acted(Event):
    """An action without a result of its own is done (cancel, release, patch)."""

    key: str
    detail: str = ""


@dataclass(frozen=True)
class Withheld(Event):
    """The run is only observed: the executor did not carry out the action."""

    key: str


@dataclass(frozen=True)
class ActionFailed(Event):
    """An action was refused for good; if its result is unknown, the executor tries again and reports nothing."""

    key: str
    kind: str
    error: str


@dataclass(frozen=True)
class StopRequested(Event):
    who: str


@dataclass(frozen=True)
class LiftRequested(Event):
    """A person lets the run use these nodes again. request: its name; each takes effect once."""

    who: str
    request: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class RequeueRequested(Event):
    """A person asks for a new attempt. request: its name; each counts once, as in LiftRequested."""

    who: str
    request: str


@dataclass(frozen=True)
class ResumeRequested(Event):
    """A person asks to release the held job."""

    who: str
    request: str


@dataclass(frozen=True)
class Resumed(Event):
    """A person continues a run that is over, in a new job."""

    who: str
    num_nodes: int = 0  # of the job, with spares; 0: as before
    fewest: int = 0  # as in `Request`
    back_to: int = -1  # the checkpoint from which it continues; -1: the newest


@dataclass(frozen=True)
class FilesRestored(Event):
    """Files of the run directory were gone, and the operator has written them again from its memory."""

    files: tuple[str, ...]
