"""A simulated cluster on which both deciders work: the launcher's core inside the job, the operator's core outside.

Time passes in seconds. What each of them sees depends on the network, on Slurm and on the file system, as in reality:
probes are judged by `health.reach`, silences by the rules of followers and monitors. No node of it is ever at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from transom_cli.core import events as ev
from transom_cli.core import launcher as la
from transom_cli.core.operator import actions as act
from transom_cli.core.operator import silent_launcher as silent
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, Request, State
from transom_cli.health.reach import Link, Reach, Second, Step, judge_reach

NODES = tuple(f"n{i}" for i in range(1, 9))
EVERY = 5  # steps between checkpoints
SILENT, LIMIT = 10.0, 9.0  # seconds without a table, without a step
HANDS = 20.0  # seconds that a finished attempt waits for its operator
AWAY = 300.0  # SlurmdTimeout


@dataclass
class Cluster:
    width: int = 3  # nodes with a rank each
    steps: int = 60  # of the training
    spares: int = 0
    rights: bool = True  # to drain
    resubmit: bool = False
    now: float = 0.0
    slurm: bool = True  # slurmctld answers
    files: bool = True  # the shared file system answers
    operator: bool = True
    firewall: bool = False  # the login node reaches no slurmd
    split: float | None = None  # since when login node and slurmctld reach no compute node
    slurmds: set[str] = field(default_factory=set)  # nodes whose slurmd is down for a moment
    agents: set[str] = field(default_factory=set)  # nodes whose agent makes no tables
    revive: bool = True  # the launcher can restart agents
    hung: set[str] = field(default_factory=set)  # nodes whose rank is stopped
    suspended: bool = False
    draining: set[str] = field(default_factory=set)  # by an administrator
    booked: bool = False  # a reservation keeps jobs from starting
    suspicions: dict[str, ev.NodeFault] = field(default_factory=dict)
    # the job
    job: int = 0
    restarts: int = 0
    status: str = ""
    held: str = ""
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    queued: float = 0.0
    stopped_at: str = ""  # as Slurm notes a suspension
    # the attempt
    launcher: la.State | None = None
    launcher_lives: bool = True  # False: killed, or stopped
    signed: float = 0.0
    launch: int = -1
    training: tuple[str, ...] = ()
    exits: dict[str, ev.RankExit] = field(default_factory=dict)
    step: int = -1
    stepped: float = 0.0
    durable: int = -1
    outcome: ev.OutcomeSeen | None = None
    outcome_at: float = 0.0
    journal: list[ev.Event] = field(default_factory=list)
    answers: list[tuple[float, la.Event]] = field(default_factory=list)
    # what came out
    state: State = field(default_factory=State)
    read: int = 0  # lines of the journal that the operator has read
    told: set[str] = field(default_factory=set)
    tables: dict[str, float] = field(default_factory=dict)  # when each node's table was last new
    waiting: list[tuple[float, act.Action]] = field(default_factory=list)
    isolated: list[act.Isolate] = field(default_factory=list)
    kept_away: list[tuple[str, float, float | None]] = field(default_factory=list)  # node, since, until
    hands: float = 0.0  # seconds that an action takes
    blamed: Counter[str] = field(default_factory=Counter)  # how often a rank on the node failed or hung first
    suspected: set[str] = field(default_factory=set)  # nodes that a check suspected

    def __post_init__(self) -> None:
        policy = Policy(drain=self.rights, release_held=True)
        self.state = State(policy=policy, request=Request(num_nodes=self.width + self.spares, spares=self.spares))
        self.tell(ev.Started(self.now, 1))

    @property
    def attempt(self) -> str:
        return f"{self.job}.{self.restarts}"

    # --- the operator ---

    def tell(self, event: ev.Event) -> None:
        self.state, actions = decide(self.state, event)
        for action in actions:
            if isinstance(action, act.Isolate):
                self.isolated.append(action)
            self.waiting.append((self.now + self.hands + getattr(action, "delay", 0.0), action))
        for x in self.state.isolation.exclusions:
            if (x.node, x.since, x.until) not in self.kept_away:
                self.kept_away.append((x.node, x.since, x.until))

    def start_operator(self) -> None:
        self.operator, self.waiting, self.read = True, [], 0
        self.told.clear()
        self.tables = {}
        self.tell(ev.Started(self.now, self.state.epoch + 1))

    def reach(self, node: str, job: int) -> ev.Event | Reach:
        """What the operator's probe finds, as `health.reach.read_reach` asks."""
        cut = self.firewall or self.split is not None or node in self.slurmds
        link = (Link.TIMEOUT if self.split is not None or self.firewall else Link.REFUSED) if cut else Link.CONNECTED
        step = Step.NOT_TRIED if cut or not job or self.status != "RUNNING" else Step.RAN
        found = Reach(node, node, 6818, link, step, alive=link is Link.REFUSED)
        if not found.fails:
            return found
        if self.split is not None and self.now - self.split > AWAY / 3:  # "not responding" comes before "down"
            return replace(found, second=Second.FAILS, by="Slurm gets no answer from it either")
        others = [n for n in self.nodes if n != node and n not in self.slurmds]
        if self.firewall or self.split is not None or not others:
            return replace(found, second=Second.BLIND)
        return (
            replace(found, second=Second.FAILS, by="a peer does not reach it either")
            if job
            else replace(found, second=Second.NONE)
        )

    def perform(self, action: act.Action) -> ev.Event:
        now, key = self.now, action.key
        if isinstance(action, act.Submit):
            self.job = self.job or 1
            self._queue()
            return ev.Submitted(now, key, self.job, released=True)
        if isinstance(action, act.Probe):
            if self.suspended:
                return ev.Probed(now, key, action.node, "UNKNOWN", "the job is suspended")
            found = judge_reach(self.reach(action.node, action.job_id))  # type: ignore[arg-type]
            return ev.Probed(now, key, action.node, found.verdict.name, found.evidence)
        if isinstance(action, act.ReadLogs):
            return ev.Examined(now, key, "unknown", "", "")
        if isinstance(action, act.Isolate):
            return ev.Isolated(now, key, action.node, "drained" if action.drain else "excluded", "")
        if isinstance(action, act.Restart):
            how = "already"
            if (action.job_id, action.expect_restarts) == (self.job, self.restarts) and self.status != "CANCELLED":
                how = "successor" if self.resubmit else "requeued"
                self.job, self.restarts = (self.job + 1, 0) if self.resubmit else (self.job, self.restarts + 1)
                self._queue()
            self.exclude = action.exclude if self.status == "PENDING" else self.exclude
            return ev.Restarted(now, key, self.job, self.restarts, how)
        if isinstance(action, act.Patch) and self.status == "PENDING":
            self.exclude = action.exclude
        elif isinstance(action, act.Release):
            self.held = ""
        elif isinstance(action, act.Cancel):
            self.status, self.launcher = "CANCELLED", None
        return ev.Acted(now, key)

    def operate(self) -> None:
        if not self.operator or self.state.phase.over:
            return
        if not self.slurm:
            self.tell(ev.SlurmLost(self.now, "Unable to contact slurm controller"))
        elif self.job:
            self.tell(self.job_seen())
        if self.files and self.status in ("RUNNING", "FAILED", "COMPLETED", "CANCELLED", "SUSPENDED"):
            self.follow()
        for due, action in list(self.waiting):
            if due <= self.now and (due, action) in self.waiting and not self.state.phase.over:
                if not self.slurm and not isinstance(action, act.ReadLogs):
                    continue
                self.waiting.remove((due, action))
                self.tell(self.perform(action))
        self.tell(ev.Tick(self.now))

    def job_seen(self) -> ev.JobSeen:
        status = "SUSPENDED" if self.suspended and self.status == "RUNNING" else self.status
        lost = tuple(self.nodes) if self.split is not None and self.now - self.split > AWAY else ()
        return ev.JobSeen(
            self.now, self.job, self.restarts, status, held=bool(self.held), reason=self.held,
            nodes=self.nodes if status != "PENDING" else (), batch_host=self.nodes[0] if self.nodes else "",
            exit_code=1 if status == "FAILED" else None, suspended_at=self.stopped_at,
            lost_nodes=lost if status == "PENDING" else (),
        )  # fmt: skip

    def follow(self) -> None:
        """What the operator's follower reads of the present attempt."""
        lives = self.now - self.signed < silent.LAUNCHER_SILENT
        while self.read < len(self.journal):
            event = self.journal[self.read]
            self.read += 1
            self.tell(replace(event, at=self.now))
        if self.launch < 0 and not self.suspended and not self.outcome and self.status == "RUNNING":
            why = silent.lost_before_launch(self.now - self.signed, began=True, first_step=120.0)
            lost = ev.OutcomeSeen(self.now, self.attempt, "failed", why, missing=(self.nodes[0],))
            self.outcome = lost if why else None
        if self.launch < 0 and self.outcome is not None and "outcome" not in self.told:
            self.told.add("outcome")
            self.tell(replace(self.outcome, at=self.now))
        if self.suspended or self.launch < 0:
            return
        if self.step >= 0:
            self.tell(ev.StepSeen(self.now, self.attempt, self.step))
        self.tell(ev.CheckpointSeen(self.now, self.durable))
        for node in self.training:
            fresh = node not in self.agents
            last = self.tables.setdefault(node, self.now)
            if fresh:
                self.tables[node] = self.now
                self.told.discard(f"silent {node}")
            elif self.now - last > SILENT and f"silent {node}" not in self.told:
                self.told.add(f"silent {node}")
                self.tell(ev.NodeSilent(self.now, self.attempt, node, self.now - last, lives))
        quiet = self.now - self.stepped
        if quiet > LIMIT and not self.outcome and self.step >= 0:
            overdue = tuple(n for n in self.training if n in self.agents)
            unseen = bool(overdue) and set(overdue) >= set(self.hung)
            stall = ev.Stall(self.step, quiet, LIMIT, (), tuple(sorted(self.hung)), overdue, unseen)
            event = ev.Stalled(self.stepped + LIMIT, self.attempt, stall)
            if "stall" not in self.told and silent.handles_stall(event, self.now, launcher_lives=lives, taken_up=False):
                self.told.add("stall")
                self.tell(replace(event, at=self.now))
        elif "stall" in self.told:
            self.told.discard("stall")
            self.tell(ev.StallEnded(self.now, self.attempt))
        if self.outcome is not None and "outcome" not in self.told:
            self.told.add("outcome")
            self.tell(replace(self.outcome, at=self.now))
        elif self.outcome is None and not lives and not self.launcher_lives and self.exits:
            end = silent.LaunchEnd(
                ev.LaunchSeen(self.now, self.attempt, self.launch, self.training, self.width),
                tuple(self.exits.values()),
                False,
            )
            since = self.now - max(x.wall for x in self.exits.values())
            found = end.outcome(self.now, since, launcher_seen=True, batch_host=self.nodes[0]) if end.over else None
            if found is not None and "outcome" not in self.told:
                self.told.add("outcome")
                self.tell(found)

    # --- the launcher ---

    def hear(self, event: la.Event) -> None:
        if self.launcher is None:
            return
        self.launcher, actions = la.decide(self.launcher, event)
        for action in actions:
            self.obey(action)

    def obey(self, action: la.Action) -> None:
        soon = self.now + 1.0
        if isinstance(action, la.StartLaunch):
            self.launch, self.training, self.exits = action.launch, action.nodes, {}
            self.step, self.stepped = -1, self.now + 2.0
            self.told.discard("stall")
            idle = tuple(n for n in self.nodes if n not in action.nodes)
            self.journal.append(ev.LaunchSeen(self.now, self.attempt, action.launch, action.nodes, self.width, idle))
            self.answers.append((soon, la.TasksSeen(0.0, action.launch)))
        elif isinstance(action, la.CheckNodes):
            faults = tuple(f for n, f in self.suspicions.items() if n in action.nodes)
            faults = () if len(faults) > 1 and 2 * len(faults) > len(action.nodes) else faults  # as `health.judge` does
            self.answers.append((soon, la.NodesChecked(0.0, action.key, faults, "checked")))
        elif isinstance(action, la.EndLaunch):
            if self.revive:
                self.agents -= {n for n in self.training if n not in self.slurmds}
            unheard = tuple(n for n in self.training if n in self.agents)
            for node in self.training:
                self.exits.setdefault(node, self._exit(node, None, 9))
            self.hung.clear()
            self.answers.append((soon, la.LaunchEnded(0.0, action.launch, (), unheard)))
        elif isinstance(action, la.ReadLogs):
            self.answers.append((soon, la.LogsRead(0.0, action.launch, "unknown", "")))
        elif isinstance(action, la.RequestCheckpoint):
            self.answers.append((soon, la.CheckpointPlanned(0.0, action.launch, self.step + 3)))
        elif isinstance(action, la.PersistMemory):
            self.answers.append((soon, la.MemoryPersisted(0.0, action.launch, max(self.durable, self.step), "kept")))
        elif isinstance(action, la.Journal):
            known = vars(action)
            self.journal.append(ev.RecoverySeen(self.now, self.attempt, **known))
        elif isinstance(action, la.FinishAttempt):
            self.outcome, self.outcome_at = action.outcome, self.now

    def launch_turn(self) -> None:
        if self.launcher is None or not self.launcher_lives or self.suspended or not self.files:
            return
        self.signed = self.now
        for due, event in list(self.answers):
            if due <= self.now:
                self.answers.remove((due, event))
                self.hear(replace(event, at=self.now))
        if self.launch >= 0 and self.outcome is None:
            if self.exits:
                over = len(self.exits) == self.width
                bad = any(x.bad for x in self.exits.values())
                code = (1 if bad else 0) if over else None
                self.hear(la.RanksExited(self.now, self.launch, tuple(self.exits.values()), over, code))
            if self.step >= 0:
                self.hear(la.Stepped(self.now, self.launch, self.step))
            self.hear(la.CheckpointDurable(self.now, self.durable))
            quiet = self.now - self.stepped
            blind = {n for n in self.training if n in self.agents}
            if quiet > LIMIT and not self.exits and self.step >= 0 and not (blind and blind >= self.hung):
                self.hear(la.Stalled(self.now, self.launch, ev.Stall(self.step, quiet, LIMIT, (), tuple(self.hung))))
            if self.revive and self.slurm and blind and int(self.now) % 15 == 0:
                self.agents -= {n for n in blind if n not in self.slurmds}
            if self.draining & set(self.training):
                self.hear(la.NodesDraining(self.now, tuple(sorted(self.draining)), "drained by an administrator"))
            found = tuple(f for n, f in self.suspicions.items() if n in self.training)
            if found:
                self.hear(la.FaultsFound(self.now, found))
            for node in [n for n in self.nodes if n not in self.training]:
                self.hear(la.SpareChecked(self.now, node, node not in self.agents, ""))
        self.hear(la.Tick(self.now))

    # --- the training, and Slurm ---

    def _exit(self, node: str, code: int | None, signal: int | None) -> ev.RankExit:
        return ev.RankExit(self.training.index(node), node, code, signal, self.now, self.step)

    def fails(self, node: str, code: int | None = None, signal: int | None = 9) -> None:
        """A rank fails; the others lose their peer, and end after it."""
        if node not in self.training or self.exits:
            return
        self.exits[node] = self._exit(node, code, signal)
        self.now += 0.01
        for other in self.training:
            self.exits.setdefault(other, self._exit(other, 1, None))

    def train(self) -> None:
        runs = self.status == "RUNNING" and self.launch >= 0 and not self.suspended and self.files
        if not runs or self.exits or self.hung or self.outcome is not None or self.now < self.stepped:
            return
        self.step = max(self.step, self.durable) + 1
        self.stepped = self.now
        if self.step % EVERY == 0:
            self.durable = self.step
        if self.step >= self.steps:
            for node in self.training:
                self.exits[node] = self._exit(node, 0, None)

    def _queue(self) -> None:
        self.status, self.held, self.queued = "PENDING", "", self.now
        self._forget()

    def _forget(self) -> None:
        self.launcher, self.launch, self.training, self.outcome = None, -1, (), None
        self.exits, self.answers, self.journal, self.read = {}, [], [], 0
        self.hung.clear()
        self.agents.clear()
        self.told.clear()
        self.tables = {}
        self.step = -1
        self.launcher_lives, self.suspended = True, False

    def requeue(self, held: str = "") -> None:
        """Slurm, or a person, requeues the job."""
        if self.status in ("RUNNING", "PENDING"):
            self.restarts += self.status == "RUNNING"
            self._queue()
            self.held = held

    def kill_launcher(self) -> None:
        """The batch script ends with it, and Slurm ends the rest of the job."""
        if self.status == "RUNNING":
            self.status, self.launcher, self.launcher_lives = "FAILED", None, False

    def schedule(self) -> None:
        if not self.slurm:
            return
        free = [n for n in NODES if n not in self.exclude and n not in self.draining]
        wanted = self.width + self.spares
        ready = self.status == "PENDING" and not self.held and not self.booked and self.now - self.queued >= 2.0
        if ready and self.split is None and len(free) >= wanted:
            self.nodes, self.status = tuple(free[:wanted]), "RUNNING"
            policy = la.Policy(preflight=True, deep=True)
            roles = la.Nodes(self.nodes, self.width, batch_host=self.nodes[0])
            self.launcher = la.State(self.job, self.restarts, roles, 1, policy)
            self.signed = self.now
            self.hear(la.AttemptStarted(self.now, durable=self.durable, step=self.durable, memory=True))
        if self.status == "RUNNING" and self.outcome is not None and self.launcher_lives:
            if self.outcome.status == "done":
                self.status = "COMPLETED"
            elif self.now - self.outcome_at > (HANDS if not self.operator else 3 * HANDS):
                self.status = "FAILED"
        if self.status == "FAILED" and not self.operator:  # its launcher, alone, has requeued it
            self.restarts += 1
            self._queue()

    def second(self) -> None:
        self.now = float(int(self.now) + 1)
        self.schedule()
        self.train()
        self.launch_turn()
        self.operate()

    def run(self, until: Callable[[Cluster], bool], limit: float) -> bool:
        end = self.now + limit
        while not until(self) and self.now < end and not self.state.phase.over:
            self.second()
        return until(self)
