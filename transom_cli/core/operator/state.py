"""The operator's state: everything it knows about a run. Frozen; only `decide` makes a new one.

A step is a new state with the actions to carry out. An action that was ordered stays pending until its answer comes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from transom_cli.core.events import NodeFault, Taken
from transom_cli.core.incident import Incident, NodeProbes, Stage
from transom_cli.core.operator.actions import Action, Patch
from transom_cli.core.policy import Rule
from transom_cli.core.progress import Progress
from transom_cli.layout import attempt_name


class Phase(enum.Enum):
    """The state of a run in one word; the same in the journal, in JSON and on the screen."""

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
    cap_cluster: int | None = None  # nodes drained for all users of the cluster together; None: no limit
    expiry: float = 3600.0
    expiry_by_cost: bool = False
    rules: tuple[Rule, ...] = ()  # the first that matches decides; without rules, the evidence does
    observe: bool = False  # for readers: the executor carries nothing out, and the decisions are the same


@dataclass(frozen=True)
class Exclusion:
    """A node that this run avoids. `until` None: until a person lifts the exclusion."""

    node: str
    since: float
    until: float | None
    how: str  # drained or excluded
    incident: str
    reason: str
    cause: str = ""  # as in Diagnosis
    detail: str = ""  # who else drains it, or why it could not be drained
    faults: tuple[NodeFault, ...] = ()  # of this node, the proven ones first


_FULL = re.compile(r"(?:No space left on device|Disk quota exceeded)(?:: (/.*?)/\.tmp-step)?")


@dataclass(frozen=True)
class SavesFail:
    """The training's saves fail, and none succeeded since."""

    since: float
    attempt: str  # in which the first of them failed, at `since`
    count: int  # failures in a row
    step: int  # of the last one
    why: str
    good: int  # step of the newest successful save, -1: none

    @property
    def words(self) -> str:
        last = f"last good step {self.good:,}" if self.good >= 0 else "no good save so far"
        return f"{self.why}, {self.count:,} in a row, {last}"

    @property
    def advice(self) -> str:
        """What to do, for a person."""
        if (full := _FULL.search(self.why)) is None:
            return "find the cause with `transom logs`: the next save tries again"
        return f"free space {f'in {full[1]}' if full[1] else 'on that file system'}: the next save tries again"


@dataclass(frozen=True)
class Request:
    """What the run requests of Slurm. num_nodes: with spares; 0: the user's own script leaves it to Slurm."""

    num_nodes: int = 0
    spares: int = 0
    waived: str = ""  # the attempt that is to start without waiting for spares
    fewest: int = 0  # nodes to train on if others are lost; 0: all but the spares
    shrunk: str = ""  # the attempt that is to start with the fewest

    @property
    def least(self) -> int:
        return self.fewest or self.num_nodes - self.spares


@dataclass(frozen=True)
class Job:
    """The run's job as Slurm describes it, in its present start."""

    id: int = 0
    restarts: int = 0
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()  # of the present (or, while pending, the last) attempt
    batch_host: str = ""
    completing: bool = False  # it has ended, and Slurm still removes its processes
    suspended_at: str = ""  # when Slurm last suspended or resumed the job, in Slurm's own words
    running_since: float | None = None  # when this attempt was first seen to run
    starts: int = 0  # attempts after the first one, whether transom or Slurm started them
    released: str = ""  # the attempt whose hold transom lifted after Slurm had accepted its start
    unheld: str = ""  # the attempt that was last known to be held by nobody, and was not seen waiting since
    rolled_back: str = ""  # the attempt that ran, and that Slurm later said had never begun

    @property
    def attempt(self) -> str:
        return attempt_name(self.id, self.restarts) if self.id else ""

    @property
    def suspended(self) -> bool:
        """Slurm has stopped the job: launcher, agents and ranks. Their silence is no evidence."""
        return self.state == "SUSPENDED"

    def started_again(self, job_id: int, restarts: int) -> Job:
        starts = self.starts + 1
        return replace(
            self, id=job_id, restarts=restarts, starts=starts, state="PENDING", running_since=None, completing=False
        )


@dataclass(frozen=True)
class Leaving:
    """The ranks save and end, and the run continues in another launch. why: as in `core.launcher.state.Reason`."""

    at: float
    why: str
    words: str


@dataclass(frozen=True)
class LossReport:
    """The launcher reported at `step` that the loss is NaN or infinite."""

    step: int
    what: str  # as in `diagnose.clue.Trouble`
    words: str
    good: int  # the newest checkpoint from before it; -1: none is known


@dataclass(frozen=True)
class Launch:
    """The newest launch of the present attempt, as its launcher reports it."""

    started: bool = False  # the training step of this attempt was started
    number: int = 0
    newest_fault: int = 0  # the launcher's number of the newest fault that it handles itself
    leaving: Leaving | None = None
    top_up: str = ""  # the newest about the top-up job of a run that has shrunk
    older: str = ""  # it continues from before the newest checkpoint on disk
    late: str = ""  # it has made no step in its time, and may hang; "" otherwise
    stopped: str = ""  # what the launcher wrote about a signal that ended the attempt
    extra: tuple[str, ...] = ()  # its nodes that a top-up job brought; not in `job.nodes`
    bad_loss: LossReport | None = None  # the newest of the attempt


@dataclass(frozen=True)
class UserRequest:
    """What a person asked of the run, or its operator did to its files."""

    at: float
    what: str  # stop, lift, requeue, resume or restored
    who: str
    name: str = ""  # of the request, "" if it has none
    result: str = ""  # what it led to


@dataclass(frozen=True)
class Idle:
    """Nodes of the attempt without a rank: spares, and nodes that a spare has replaced."""

    nodes: tuple[str, ...] = ()
    probes: tuple[NodeProbes, ...] = ()
    faults: tuple[NodeFault, ...] = ()  # what checks found against them

    def probes_of(self, node: str) -> NodeProbes | None:
        return next((x for x in self.probes if x.node == node), None)

    def with_probes(self, probes: NodeProbes) -> Idle:
        return replace(self, probes=(*(x for x in self.probes if x.node != probes.node), probes))


@dataclass(frozen=True)
class Budget:
    """Restarts in a row without progress."""

    no_progress: int = 0
    spared: int = 0  # restarts in a row after a preflight that found bad nodes; `no_progress` does not count them


@dataclass(frozen=True)
class Isolation:
    """The nodes that the run avoids, and what the cap counts."""

    exclusions: tuple[Exclusion, ...] = ()
    times: tuple[float, ...] = ()  # when nodes were isolated, within the cap's window
    lifts: tuple[str, ...] = ()  # requests to lift exclusions that were carried out

    @property
    def excluded(self) -> tuple[str, ...]:
        return tuple(x.node for x in self.exclusions)

    @property
    def suspected(self) -> tuple[str, ...]:
        """Nodes whose exclusion expires."""
        return tuple(x.node for x in self.exclusions if x.until is not None)

    def of(self, node: str) -> Exclusion | None:
        return next((x for x in self.exclusions if x.node == node), None)

    def expired(self, at: float) -> tuple[str, ...]:
        return tuple(x.node for x in self.exclusions if x.until is not None and x.until <= at)

    def excluding(self, *new: Exclusion) -> Isolation:
        nodes = {x.node for x in new}
        return replace(self, exclusions=(*(x for x in self.exclusions if x.node not in nodes), *new))

    def without(self, nodes: Collection[str]) -> Isolation:
        return replace(self, exclusions=tuple(x for x in self.exclusions if x.node not in nodes))

    def expiring(self, nodes: Collection[str], at: float) -> Isolation:
        """The exclusions of these nodes end at `at`."""
        kept = (replace(x, until=at) if x.node in nodes else x for x in self.exclusions)
        return replace(self, exclusions=tuple(kept))


@dataclass(frozen=True)
class WouldHave:
    """An action that was not carried out, since the run is only observed."""

    at: float
    key: str  # of the action
    what: str  # drain, exclude, requeue, cancel, release, update, or what the launcher would have done
    words: str
    nodes: tuple[str, ...] = ()  # to isolate; or without which the job would have been requeued
    attempt: str = ""

    @property
    def incident(self) -> str:
        """The incident that it belongs to, or ""."""
        name = self.key.partition("/")[0]
        return name if name[:1] == "i" and name[1:].isdecimal() else ""


@dataclass(frozen=True)
class State:
    policy: Policy = field(default_factory=Policy)
    request: Request = field(default_factory=Request)
    phase: Phase = Phase.SUBMITTING
    since: float = 0.0  # of the phase
    epoch: int = 0
    job: Job = field(default_factory=Job)
    launch: Launch = field(default_factory=Launch)
    idle: Idle = field(default_factory=Idle)
    progress: Progress = field(default_factory=Progress)  # of the present job step
    job_step: str = ""  # its name in the user's own script; "": the job has only one
    other_steps: tuple[tuple[str, Progress], ...] = ()  # of the script's other job steps
    budget: Budget = field(default_factory=Budget)
    isolation: Isolation = field(default_factory=Isolation)
    slurm_error: str = ""  # while Slurm does not answer
    slurm_lost_at: float = 0.0  # when it last answered before that, if known
    saves_fail: SavesFail | None = None
    stop_requested: bool = False
    requests: tuple[UserRequest, ...] = ()  # of people, newest last
    incident: Incident | None = None
    incidents: tuple[Incident, ...] = ()  # closed ones, oldest first
    taken: tuple[Taken, ...] = ()  # what was decided of others, in the attempts before a launcher's own
    submissions: tuple[tuple[str, int], ...] = ()  # as in SubmissionAnswered: the action's key, the job's ID
    pending: tuple[Action, ...] = ()  # ordered, outcome not yet known
    patches: int = 0
    withheld: tuple[WouldHave, ...] = ()  # in a run that is only observed, oldest first
    verdict: str = ""  # why the run is held, failed or stopped
    exit_code: int | None = None  # of the run, when it is over
    past_jobs: tuple[int, ...] = ()  # jobs of the run before a person resumed it
    resumed_at: float = 0.0  # when a person last resumed it; earlier incidents no longer count for decisions

    @property
    def counting(self) -> tuple[Incident, ...]:
        """The closed incidents that decisions depend on, oldest first."""
        return tuple(one for one in self.incidents if one.began >= self.resumed_at)

    @property
    def attempt(self) -> str:
        return self.job.attempt

    @property
    def carrying(self) -> tuple[str, ...]:
        """The nodes that carry ranks: of the job, and of a top-up job."""
        return (*(n for n in self.job.nodes if n not in self.idle.nodes), *self.launch.extra)

    @property
    def restarting(self) -> bool:
        """The job is being given back to Slurm: only the answer to that counts."""
        return self.incident is not None and self.incident.stage is Stage.RESTARTING

    @property
    def withholding(self) -> bool:
        """What was decided about the open incident was not carried out: its fate is Slurm's and the user's."""
        return self.incident is not None and self.incident.stage is Stage.WITHHELD

    @property
    def starting(self) -> bool:
        """The open incident, if any, is about an earlier attempt: what is seen now is news of the present one."""
        return self.incident is None or self.incident.stage is Stage.STARTING

    @property
    def ends(self) -> bool:
        """Slurm removes the job's processes, and has not said how the job ended."""
        return self.job.completing and self.incident is None and self.phase in (Phase.STARTING, Phase.TRAINING)

    @property
    def avoided(self) -> tuple[Exclusion, ...]:
        """The exclusions in force. One that a person has lifted is kept until the next restart."""
        lifts = {one.at for one in self.requests if one.what == "lift"}
        return tuple(x for x in self.isolation.exclusions if x.until not in lifts)

    @property
    def waiting(self) -> bool:
        """The job waits for its next start, so its exclusions can still be changed."""
        return self.job.state == "PENDING" and self.starting and self.phase is not Phase.STOPPING

    def in_phase(self, phase: Phase, at: float) -> State:
        return replace(self, phase=phase, since=at)

    def in_attempt(self, job_id: int, restarts: int) -> State:
        """The state of another attempt, or the same one."""
        if (job_id, restarts) == (self.job.id, self.job.restarts):
            return self
        job, progress = self.job.started_again(job_id, restarts), self.progress.new_start()
        return replace(self, job=job, progress=progress, launch=Launch(), idle=Idle())

    def in_job_step(self, name: str) -> State:
        """The state with another job step, whose progress counts by itself: a crash loop in one step is a loop."""
        if name == self.job_step:
            return self
        known = {**dict(self.other_steps), self.job_step: self.progress}
        progress = known.pop(name, Progress()).new_start()
        return replace(self, job_step=name, progress=progress, other_steps=tuple(sorted(known.items())))

    def mark(self, at: float, what: str, words: str) -> State:
        """Add a line to the open incident's timeline, if there is one."""
        return self if self.incident is None else replace(self, incident=self.incident.marked(at, what, words))

    def heard(self, request: str) -> bool:
        return any(one.name == request for one in self.requests if request)

    def requested(self, at: float, what: str, who: str, name: str = "", result: str = "") -> State:
        return replace(self, requests=(*self.requests, UserRequest(at, what, who, name, result)))

    def new_incident(self, at: float, stage: Stage, number: int = 0) -> Incident:
        """An incident of the present attempt. number: the launcher's own, where it handles the fault."""
        ran = at - self.job.running_since if self.job.running_since is not None else 0.0
        progress = self.progress
        incident = Incident(f"i{len(self.incidents) + 1}", self.job.id, self.job.restarts, at, progress.step, stage)
        incident = replace(incident, launcher_number=number, ran=ran, since_start=progress.since_start)
        return replace(incident, durable=progress.durable)


Step = tuple[State, tuple[Action, ...]]


def order(state: State, *actions: Action) -> Step:
    """Order actions that are not ordered already."""
    known = {a.key for a in state.pending}
    new = tuple(a for a in actions if a.key not in known)
    return replace(state, pending=state.pending + new), new


def both(first: Step, then: Step) -> Step:
    """`then` was computed from the state of `first`."""
    return then[0], first[1] + then[1]


def answered(state: State, key: str) -> State:
    return replace(state, pending=tuple(a for a in state.pending if a.key != key))


def withdraw_patches(state: State) -> tuple[State, tuple[str, ...]]:
    """Only the newest exclusions count: forget unanswered patches, except for the nodes that they were to let in."""
    older = [a for a in state.pending if isinstance(a, Patch)]
    others = tuple(a for a in state.pending if not isinstance(a, Patch))
    let_in = (n for a in older for n in a.drop if n not in state.isolation.excluded)
    return replace(state, pending=others), tuple(dict.fromkeys(let_in))
