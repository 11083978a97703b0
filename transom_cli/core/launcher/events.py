"""What the launcher's core hears. Frozen; `at` is in seconds, on the launcher's clock. What it orders: `orders`."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.core.events import NodeFault, RankExit, Stall, Taken

THIS_LAUNCHER = "this launcher"  # a survivor's node that is none: our own fault, for which no node is to be blamed


@dataclass(frozen=True)
class Heard:
    at: float


@dataclass(frozen=True)
class Begun(Heard):
    """The attempt has its nodes; `durable` is the newest checkpoint's step, or -1.

    step: the newest step of the attempts before this one, or -1. stuck: how many of them, in a row, made no progress.
    made: where steps count from the start of the processes, those of the last attempt that made any; else -1.
    isolated: nodes that are to carry no rank; with `insist` (nobody else keeps them out) not even where there are too
    few others. lacked: the attempt before this one was left for that very reason.
    memory: agents run, so that the nodes may come to hold snapshots.
    taken: what the policy decided in those attempts; the times are seconds before this one, below zero.
    """

    durable: int = -1
    step: int = -1
    stuck: int = 0
    isolated: tuple[str, ...] = ()
    insist: bool = False
    lacked: bool = False
    memory: bool = False
    taken: tuple[Taken, ...] = ()
    made: int = -1


@dataclass(frozen=True)
class Tick(Heard):
    pass


@dataclass(frozen=True)
class Spare(Heard):
    """A spare was looked at: it is ready to take a rank's place, or it is not good."""

    node: str
    good: bool
    words: str = ""


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
class SlurmAway(Heard):
    """A training step that cannot be asked for now, since slurmctld gives no answer; it is asked for again."""

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
class Stalled(Heard):
    """The ranks of a launch make no step any more."""

    launch: int
    stall: Stall


@dataclass(frozen=True)
class Silent(Heard):
    """Nothing is heard of a node for so many seconds, while others are heard, and its slurmd gives no answer either.

    limit: seconds without a step that are nothing unusual; 0 as long as that is not known.
    """

    node: str
    silent_for: float
    limit: float = 0.0


@dataclass(frozen=True)
class Stepped(Heard):
    """A step that every rank of the launch has done. since_start: it counts from the start of the processes."""

    launch: int
    step: int
    since_start: bool = False


@dataclass(frozen=True)
class Durable(Heard):
    step: int


@dataclass(frozen=True)
class Ended(Heard):
    """Answer to `End`.

    unheard: nodes whose agent did not say that all is gone. survivors: (node, what lives on there); the node is
    THIS_LAUNCHER where the launcher itself could not do its part.
    """

    launch: int
    exits: tuple[RankExit, ...] = ()
    unheard: tuple[str, ...] = ()
    survivors: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()  # one line a rank, where it was asked for
    suspects: tuple[str, ...] = ()  # of a hang: nodes that the others waited for, as the evidence tells


@dataclass(frozen=True)
class Read(Heard):
    """Answer to `ReadLogs`: category and line as in `events.Examined`."""

    launch: int
    category: str
    line: str
    where: str = ""


@dataclass(frozen=True)
class Checked(Heard):
    """Answer to `CheckNodes`: what keeps nodes from carrying a rank, and in `words` what came of it all."""

    key: str
    faults: tuple[NodeFault, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class Faulty(Heard):
    """What the agent of a node has found against it: while it trains, or stands by."""

    faults: tuple[NodeFault, ...]


@dataclass(frozen=True)
class Reported(Heard):
    """Something is odd about a launch that steps: `what`, of `diagnose.oddity.ODDITIES`. over: it is no more.

    key: by which it is known from one word to the next. nodes: the likely cause. step: where it was told. Of a loss:
    before: the newest step whose state is from before the trouble, -1 if none is known to be; back_to: the newest
    step up to that which has a checkpoint, or -1.
    """

    launch: int
    key: str
    what: str
    words: str
    step: int
    nodes: tuple[str, ...] = ()
    before: int = -1
    back_to: int = -1
    over: bool = False


@dataclass(frozen=True)
class Acting:
    """What a rule has done about a report. words: which rule, and why. skip: as `Rule.skip_batches`."""

    report: Reported
    action: str
    rule: str
    words: str
    skip: bool = True


@dataclass(frozen=True)
class Warned(Heard):
    """The time limit is near: USR2, as `sbatch --signal` asks for."""


@dataclass(frozen=True)
class Draining(Heard):
    """Somebody drains nodes of ours: `words` says which, and why."""

    nodes: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Flushing(Heard):
    """Answer to `Flush`: the step at which all ranks will save, or -1 and in `words` why there is none.

    keeps: ranks live on through TERM, and must be ended. again: it is worth asking again. alone: the ranks have no
    Checkpointer, and handle the warning before the time limit by themselves.
    """

    launch: int
    step: int
    words: str = ""
    keeps: bool = False
    again: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Kept(Heard):
    """Answer to `Keep`: the newest step that is durable now (-1: not known), and in `words` what was done, or why it
    could not be; "" where there was nothing to do.
    """

    launch: int
    step: int
    words: str = ""


@dataclass(frozen=True)
class Told(Heard):
    """Slurm or a person ends the attempt: TERM or INT."""

    signal: str


@dataclass(frozen=True)
class Overtime(Heard):
    """The time that Slurm leaves a job that is told to end is almost up."""
