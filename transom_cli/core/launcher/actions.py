"""The actions that the launcher's state machine orders. Frozen."""

from dataclasses import dataclass

from transom_cli.core.costs import Situation
from transom_cli.core.events import UNDECIDED, Decided, NodeFault, OutcomeSeen, RankExit


@dataclass(frozen=True)
class StartLaunch:
    """Start the training step on these nodes, with a rendezvous of its own.

    Only this action changes the members of a training (`supervise.launcher.group` carries it out).

    lost: only these ranks are started. The others are processes of the launch before, and enter their training again.
    """

    launch: int
    nodes: tuple[str, ...]
    faults: tuple[NodeFault, ...] = ()  # findings against nodes that carry no rank because of them
    lost: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()  # the ranks that train before the lost ones have joined; (): they wait for them


@dataclass(frozen=True)
class RollBack:
    """From `launch` on, in this attempt and later ones, training resumes from step `to` or an older one."""

    launch: int
    to: int
    skip: tuple[int, int] | None  # first and last step whose batches are to be left out; None: none
    why: str  # for a person


@dataclass(frozen=True)
class CheckNodes:
    """Run health checks on these nodes. key: repeated in the answer. tier: as in `health.check.Tier`."""

    key: str
    nodes: tuple[str, ...]
    tier: str


@dataclass(frozen=True)
class RequestCheckpoint:
    """Have all ranks save a final checkpoint at a step that none of them has passed."""

    launch: int


@dataclass(frozen=True)
class PersistMemory:
    """Have the nodes write the newest step in their memory to disk, without the ranks, within `seconds`."""

    launch: int
    seconds: float


@dataclass(frozen=True)
class EndLaunch:
    """Remove every process of the launch from all nodes.

    evidence: collect evidence of every rank first. grace: seconds from TERM to KILL, if not the usual ones.
    """

    launch: int
    incident: str
    evidence: bool
    grace: float | None = None


@dataclass(frozen=True)
class JudgeHang:
    """Collect evidence of every rank, and find those that the others wait for. The launch lives on."""

    launch: int
    incident: str


@dataclass(frozen=True)
class KillRanks:
    """Kill all processes of these ranks, and nothing else of the launch. Their nodes may not answer."""

    launch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReplaceRanks:
    """Start these ranks of the present launch again: they have been killed before they entered it."""

    launch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReadLogs:
    """alive: the launch has not been ended. Also find out which of its ranks wait for orders."""

    launch: int
    rank: int | None  # whose logs are read first
    alive: bool = False
    without: tuple[str, ...] = ()  # nodes that do not answer


@dataclass(frozen=True)
class WatchSpares:
    """Probe these nodes from now on: they carry no rank and may get one."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class SubmitTopUp:
    """Submit a job for `least` to `most` nodes without those of `without`. seconds: its time limit; None: unknown."""

    least: int
    most: int
    without: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class CancelTopUp:
    job_id: int
    why: str


@dataclass(frozen=True)
class Journal:
    """Write an entry into the launcher's journal, where the operator reads it."""

    incident: str
    what: str
    words: str
    cause: str = ""
    nodes: tuple[str, ...] = ()
    faults: tuple[NodeFault, ...] = ()
    decided: Decided = UNDECIDED
    durable: int | None = None  # after a rollback: the newest step to resume from
    step: int = -1  # as in `RecoverySeen`
    since_start: bool = False
    end: RankExit | None = None
    situation: Situation | None = None  # when a run shrinks: what `costs.comparison` compared


@dataclass(frozen=True)
class FinishAttempt:
    """Write the outcome and end the attempt.

    again: what to do without an operator: "requeue", "hold", "uncancelled" (requeue if Slurm ended the job for its time
    limit or preempted it, but not if it was cancelled), or "" (nothing).
    """

    outcome: OutcomeSeen
    exit_code: int
    again: str = ""


@dataclass(frozen=True)
class WithheldOutcome:
    """Record the outcome with which an attempt that is only observed would have ended; its ranks live on."""

    outcome: OutcomeSeen


Action = (
    StartLaunch
    | RollBack
    | CheckNodes
    | RequestCheckpoint
    | PersistMemory
    | EndLaunch
    | JudgeHang
    | KillRanks
    | ReplaceRanks
    | ReadLogs
    | WatchSpares
    | SubmitTopUp
    | CancelTopUp
    | Journal
    | FinishAttempt
    | WithheldOutcome
)
