"""A small simulated cluster with a training on it, whose hands answer the core honestly. Faults are real there: a dead
node stays dead, a hang ends when the job restarts, an answer comes only while Slurm does."""

from __future__ import annotations

from core_ledger import Ledger

from transom_cli.core import events as ev
from transom_cli.core.incident import Stage
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.state import Policy, Request, State

NODES = tuple(f"n{i}" for i in range(1, 9))
WIDTH = 3


class World:
    def __init__(self, policy: Policy) -> None:
        self.now = 0.0
        self.ledger = Ledger(State(policy=policy, request=Request(num_nodes=WIDTH)))
        self.journal: list[ev.Event] = []
        self.slurm = True
        self.dead: set[str] = set()
        self.job_id = 0
        self.restarts = 0
        self.status = ""
        self.held = ""
        self.nodes: tuple[str, ...] = ()
        self.exclude: tuple[str, ...] = ()
        self.step = 0
        self.durable = -1
        self.hung = False
        self.sick: dict[str, str] = {}  # what the preflight finds: a verdict for each node
        self.failing = ""  # how every attempt ends before its first step, while set
        self.told: set[str] = set()  # edges that this operator's detectors have told of this attempt
        self.starts: list[tuple[int, int]] = []  # every start of a job, in order
        self.start_operator()

    # --- the operator ---

    def tell(self, event: ev.Event) -> None:
        before = self.ledger.state
        if self.ledger.feed(event) or self.ledger.state != before:
            self.journal.append(event)

    def start_operator(self) -> None:
        self.told.clear()
        self.tell(ev.Started(self.now, self.ledger.state.epoch + 1))

    @property
    def attempt(self) -> str:
        return f"{self.job_id}.{self.restarts}"

    def observe(self) -> None:
        """One look of all senses: Slurm first, or the files first, as it happens."""
        if self.slurm and self.job_id:
            self.tell(self.job_seen())
        state = self.ledger.state
        if self.status == "RUNNING" and self.job_id == state.job.id:
            busy = state.incident is not None and state.incident.stage is Stage.RESTARTING
            if self.attempt == state.attempt or not busy:  # as the follower does: each thing is told once, in its time
                self._files()

    def job_seen(self) -> ev.JobSeen:
        code = 1 if self.status == "FAILED" else None
        lost = tuple(n for n in self.nodes if n in self.dead) if self.status == "PENDING" else ()
        return ev.JobSeen(
            self.now,
            self.job_id,
            self.restarts,
            self.status,
            held=bool(self.held),
            reason=self.held,
            nodes=self.nodes if self.status != "PENDING" else (),
            batch_host=self.nodes[0] if self.nodes else "",
            exit_code=code,
            lost_nodes=lost,
        )

    def _preflight(self) -> None:
        """The launcher's checks find a bad node, and there is no spare."""
        bad = tuple(ev.NodeFault(n, "xid", self.sick[n], "79") for n in self.nodes if n in self.sick)
        why = f"{WIDTH} nodes are needed, and only {WIDTH - len(bad)} passed"
        out = ev.OutcomeSeen(self.now, self.attempt, "left", why, nodes=self.nodes, cause="preflight", faults=bad)
        self.told.add("outcome")
        self.tell(out)
        self.status = "FAILED"  # the batch script's exit code is 75

    def _files(self) -> None:
        if "launch" not in self.told and any(n in self.sick for n in self.nodes):
            self._preflight()
            return
        if "launch" not in self.told:
            self.told.add("launch")
            self.tell(ev.LaunchSeen(self.now, self.attempt, 0, self.nodes, 2 * WIDTH))
        lost = [n for n in self.nodes if n in self.dead]
        if self.failing and "outcome" not in self.told:
            self.told.add("outcome")
            bad = ev.RankExit(1, self.nodes[-1], 1, None, self.now)
            self.tell(ev.OutcomeSeen(self.now, self.attempt, "failed", bad.words, (bad,)))
            self.status = self.failing
        for node in lost:
            if node not in self.told:
                self.told.add(node)
                self.tell(ev.NodeSilent(self.now, self.attempt, node, 11.0))
        stuck = self.hung or bool(lost)
        if stuck and "quiet" not in self.told:
            self.told.add("quiet")
            self.tell(ev.Stalled(self.now, self.attempt, ev.Stall(self.step, 9.0, 8.0, (), tuple(lost))))
        elif not stuck and "quiet" in self.told:
            self.told.discard("quiet")
            self.tell(ev.StallEnded(self.now, self.attempt))
        if not stuck and not self.failing:
            self.step += 1
            self.tell(ev.StepSeen(self.now, self.attempt, self.step))

    # --- the hands ---

    def act(self, which: int) -> None:
        waiting = list(self.ledger.asked.values())
        if not waiting:
            return
        action = waiting[which % len(waiting)]
        if not self.slurm and not isinstance(action, act.ReadLogs):
            self.tell(ev.SlurmLost(self.now, "Unable to contact slurm controller"))
            return
        self.tell(self._perform(action))

    def _perform(self, action: act.Action) -> ev.Event:
        now, key = self.now, action.key
        if isinstance(action, act.Submit):
            if not self.job_id:
                self.job_id, self.status = 1, "PENDING"
            return ev.Submitted(now, key, self.job_id)
        if isinstance(action, act.Probe):
            verdict = "FAIL" if action.node in self.dead else "PASS"
            return ev.Probed(now, key, action.node, verdict, "asked")
        if isinstance(action, act.ReadLogs):
            return ev.Examined(now, key, "network_fabric", "Connection closed by peer", "rank-0.log")
        if isinstance(action, act.Isolate):
            return ev.Isolated(now, key, action.node, "excluded", "")
        if isinstance(action, act.Restart):
            return self._restart(action)
        if isinstance(action, act.Patch):
            if self.status == "PENDING":
                self.exclude = action.exclude
        elif isinstance(action, act.Release):
            self.held = ""
        elif isinstance(action, act.Cancel) and action.job_id == self.job_id and self.status in ("PENDING", "RUNNING"):
            self.status = "CANCELLED"
        return ev.Acted(now, key)

    def _restart(self, action: act.Restart) -> ev.Event:
        if action.job_id != self.job_id or self.restarts > action.expect_restarts:
            how = "already"
            if self.status == "PENDING":
                self.exclude = action.exclude
        elif self.status == "CANCELLED":
            how = "already"
        elif self.nodes and self.nodes[0] in action.dead:  # the batch host is gone
            how, self.job_id, self.restarts = "successor", self.job_id + 1, -1
            self._requeue(action.exclude)
        else:
            how = "requeued"
            self._requeue(action.exclude)
        return ev.Restarted(self.now, action.key, self.job_id, self.restarts, how)

    def _requeue(self, exclude: tuple[str, ...]) -> None:
        self.status, self.exclude, self.held = "PENDING", exclude, ""
        self.restarts += 1
        self.hung = False
        self.told.clear()

    # --- Slurm by itself ---

    def requeue_behind(self, held: str = "") -> None:
        if self.status in ("RUNNING", "PENDING"):
            self._requeue(self.exclude)
            self.held = held

    def schedule(self) -> None:
        """Slurm does not know yet which nodes are dead: only exclusions keep the job off them."""
        free = [n for n in NODES if n not in self.exclude]
        if self.status == "PENDING" and not self.held and len(free) >= WIDTH:
            self.nodes, self.status = tuple(free[:WIDTH]), "RUNNING"
            self.step = max(self.durable, 0)
            self.told.clear()
            self.starts.append((self.job_id, self.restarts))

    def settle(self) -> None:
        """No more faults: Slurm answers, people let go, and everything is seen and done until nothing changes."""
        self.slurm, self.held, self.failing = True, "", ""
        for _ in range(300):
            self.now += 61.0
            self.schedule()
            self.observe()
            while self.ledger.asked and not self.ledger.over:
                before = len(self.ledger.asked)
                self.act(0)
                if len(self.ledger.asked) >= before and self.ledger.state.phase.over:
                    break
            self.tell(ev.Tick(self.now))
            state = self.ledger.state
            if state.phase.over or (state.phase.value == "training" and state.incident is None and not self.stuck):
                return

    @property
    def stuck(self) -> bool:
        return self.hung or any(n in self.dead for n in self.nodes)
