"""A simulated run: the real operator core, Slurm's side, and the attempts. Pure.

Nothing here decides anything about the run. `core` gets the events that its real observers would send, and its actions
are answered as the real executors would answer them, with delays from `Costs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf

from transom_cli.core import events as ev
from transom_cli.core import goodput
from transom_cli.core import launcher as la
from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.goodput import NS, Kind
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.decide import decide, next_deadline
from transom_cli.core.operator.isolation import on_probation
from transom_cli.core.operator.state import Request, State
from transom_cli.simulate.attempt import Attempt
from transom_cli.simulate.fleet import Fleet, Node
from transom_cli.simulate.model import DAY, HOUR, Fault, Scenario
from transom_cli.simulate.timeline import Alarm, Timeline

BEGIN = 1_767_225_600.0  # Unix time at which every simulated run begins: 2026-01-01
SBATCH = 1.0  # seconds
ENDING = 600.0  # seconds for the job to end after the simulated time
CALM = 90.0  # the same, while nothing is expected
SQUEUE = 1.0  # seconds until the operator knows a new state of the job


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave.

    Attributes:
        sums: Where the time went, as `transom goodput` counts it.
        horizon: The simulated time in seconds. A run that stopped early trained nothing afterwards.
        work: Seconds that all steps would have taken on all nodes, undisturbed.
        drained, excluded: Nodes. wrong: of them, those with which nothing was wrong.
        unseen: Faults that made the training wrong, and that no guard found.
        recoveries: (cause, seconds from the fault to the next step) of every incident that ended well.
    """

    seed: int
    sums: goodput.Sums
    horizon: float
    work: float
    phase: str
    verdict: str
    faults: int
    incidents: int
    attempts: int
    launches: int
    drained: int
    excluded: int
    wrong: int
    unseen: int
    recoveries: tuple[tuple[str, float], ...]

    @property
    def goodput(self) -> float:
        return self.work / self.horizon

    def seconds(self, kind: Kind) -> float:
        return self.sums.ns[kind] / NS


class Cluster:
    """One simulated run. `journal` has the events that the operator's journal would have."""

    def __init__(self, scenario: Scenario, seed: int, script: Callable[[Cluster], None] | None = None) -> None:
        """script: plans faults and more by itself, for a replay."""
        self.scenario, self.seed = scenario, seed
        self.timeline = Timeline(BEGIN, f"{seed}/run")
        self.fleet = Fleet(self.timeline, scenario, seed, self._failed, self._returned, self._noticed)
        self.state = State(
            policy=scenario.operator, request=Request(scenario.requested, scenario.spares, fewest=scenario.fewest)
        )
        self.journal: list[ev.Event] = []
        self.attempts: list[Attempt] = []
        self._history = goodput.JournalHistory()
        self._alarm = Alarm(self.timeline, self._tick)
        self._durable = -1
        self._job, self._restart = 0, 0
        self._want, self._exclude = scenario.requested, frozenset[str]()
        self._eligible = inf  # when the pending job may start; inf: no job is pending
        self._reason = ""
        self._leaving: set[str] = set()  # nodes to be repaired once the job has left them
        self._faults = self._drained = self._excluded = self._wrong = self.unseen = 0
        if script is not None:
            script(self)

    def run(self) -> Outcome:
        horizon = self.scenario.days * DAY
        self.tell(ev.Started(BEGIN, 1))
        self.timeline.run(BEGIN + horizon, lambda: self.state.phase.over)
        phase, verdict = self.state.phase, self.state.verdict
        if not phase.over:  # end the journal
            if self.attempt is not None:
                self.attempt.synchronize()
            self.tell(ev.StopRequested(self.timeline.now, "the end of the simulation"))
            self.timeline.run(BEGIN + horizon + ENDING, lambda: self.state.phase.over)
        return self._outcome(horizon, phase.value, verdict)

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts and not self.attempts[-1].over else None

    # --- the operator ---

    def tell(self, event: ev.Event) -> None:
        before = self.state
        self.state, actions = decide(before, event)
        if actions or self.state != before:
            self.journal.append(event)
            self._history.hear(event, self.state)
        for action in actions:
            self._do(action)
        due = next_deadline(self.state)
        if due is not None and due <= self.timeline.now and isinstance(event, ev.Tick):
            due = None
        self._alarm.set(due)

    def tell_now(self, event: ev.Event) -> None:
        """Tell what was read from a file: it counts from the time at which it is read."""
        attempt = self.attempt
        if isinstance(event, ev.OutcomeSeen | ev.RecoverySeen) and (attempt is None or event.attempt != attempt.name):
            return  # the operator has given the attempt back already
        self.tell(replace(event, at=self.timeline.now))
        if isinstance(event, ev.OutcomeSeen) and event.status == "done":
            self._end_attempt()
            self.tell(ev.JobSeen(self.timeline.now, self._job, self._restart, "COMPLETED", exit_code=0))

    def _tick(self) -> None:
        self.tell(ev.Tick(self.timeline.now))

    def _do(self, action: act.Action) -> None:
        costs, later = self.scenario.costs, self.timeline.after
        if isinstance(action, act.Submit):
            later(SBATCH, self._submitted, action)
        elif isinstance(action, act.Probe):
            later(action.delay + costs.probe, self._probed, action)
        elif isinstance(action, act.ReadLogs):
            later(costs.logs, lambda: self.tell(ev.Examined(self.timeline.now, action.key, "unknown", "", "logs")))
        elif isinstance(action, act.Isolate):
            later(costs.isolate, self._isolate, action)
        elif isinstance(action, act.Restart):
            later(costs.requeue, self._requeue, action)
        else:
            later(costs.isolate, self._change_job, action)

    def _submitted(self, action: act.Submit) -> None:
        self._job = 1
        self.tell(ev.Submitted(self.timeline.now, action.key, self._job, released=True))
        self._queue()

    def _probed(self, action: act.Probe) -> None:
        up = self.fleet.nodes[action.node].up
        words = "its slurmd answers" if up else "no answer from slurmd; another node does not reach it either"
        self.tell(ev.Probed(self.timeline.now, action.key, action.node, "PASS" if up else "FAIL", words))

    def _isolate(self, action: act.Isolate) -> None:
        node = self.fleet.nodes[action.node]
        self._drained += action.drain
        self._excluded += not action.drain
        self._wrong += node.up and node.broken is None
        attempt = self.attempt
        if action.drain and attempt is not None and action.node in attempt.nodes:
            self._drained_in_job(attempt, action.node)
        elif action.drain:
            self.fleet.drain(action.node)
        how = "drained" if action.drain else "excluded"
        self.tell(ev.Isolated(self.timeline.now, action.key, action.node, how, ""))

    def _drained_in_job(self, attempt: Attempt, name: str) -> None:
        """The launcher gives a drained node without a rank back to Slurm, but never the batch host."""
        attempt.hear(la.NodesDraining(self.timeline.now, (name,), f"{name} is drained"))
        if name in (*attempt.state.nodes.training, attempt.nodes[0]):
            self._leaving.add(name)
            return
        attempt.released.add(name)
        self.fleet.drain(name)
        self.timeline.after(CALM, self._running, attempt)

    def _change_job(self, action: act.Action) -> None:
        if isinstance(action, act.Patch):
            self._exclude = frozenset(action.exclude)
            self._want = action.num_nodes or self._want
        self.tell(ev.Acted(self.timeline.now, action.key))
        if isinstance(action, act.Cancel):
            self._eligible = inf
            self._end_attempt()
            self.tell(ev.JobSeen(self.timeline.now, self._job, self._restart, "CANCELLED"))
        self._schedule()

    # --- Slurm ---

    def _requeue(self, action: act.Restart) -> None:
        attempt = self.attempt
        how = "requeued"
        if attempt is not None and attempt.nodes[0] in action.dead:
            how, self._job, self._restart = "successor", self._job + 1, 0
        else:
            self._restart += 1
        self._end_attempt()
        self._want, self._exclude = action.num_nodes, frozenset(action.exclude)
        self.tell(ev.Restarted(self.timeline.now, action.key, self._job, self._restart, how))
        self._queue()

    def _end_attempt(self) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        self.keep_durable()
        if attempt.training is not None and attempt.training.stopped is None:
            attempt.training.stopped = self.timeline.now
        attempt.over = True
        leaving, self._leaving = sorted(self._leaving), set()
        for name in leaving:
            self.fleet.drain(name)

    def _queue(self) -> None:
        mean = self.scenario.costs.queue
        wait = self.timeline.random.expovariate(1 / mean) if mean else 0.0
        self._eligible = self.timeline.now + wait
        self.timeline.at(self._eligible, self._schedule)
        site, ours = self.scenario.site, self.attempts[-1].nodes if self.attempts else ()
        for node in self.fleet.nodes.values() if site.others and ours else ():
            if node.name not in ours and node.random.random() < site.others:
                node.taken = self.timeline.now + node.random.expovariate(1 / (site.others_hours * HOUR))
                self.timeline.at(node.taken, self._schedule)

    def _window(self) -> tuple[float, float]:
        """Return the maintenance window that is open or comes next."""
        every, lasts = self.scenario.site.maintenance_days * DAY, self.scenario.site.maintenance_hours * HOUR
        if not every:
            return inf, inf
        begin = BEGIN + every * max(1, ceil((self.timeline.now - BEGIN - lasts + 1e-6) / every))
        return begin, begin + lasts

    def _schedule(self) -> None:
        """Start the pending job if there are nodes for it."""
        now = self.timeline.now
        if now < self._eligible:
            return
        begin, end = self._window()
        if now + self.scenario.limit >= begin:
            self.timeline.at(end, self._schedule)
            self._say_pending("Reservation")
            return
        nodes = self.fleet.nodes
        free = [n for n, node in nodes.items() if n not in self._exclude and self.fleet.free(node)]
        if len(free) >= self._want:
            self._start(tuple(free[: self._want]))
            return
        possible = sum(1 for n in nodes if n not in self._exclude) >= self._want
        reason = "Resources" if possible else "BadConstraints"
        self._say_pending(reason, again=not possible)

    def _say_pending(self, reason: str, *, again: bool = False) -> None:
        if reason != self._reason or again:
            self._reason = reason
            self.timeline.after(SQUEUE, self._pending, reason)

    def _pending(self, reason: str) -> None:
        if self._eligible < inf:
            self.tell(ev.JobSeen(self.timeline.now, self._job, self._restart, "PENDING", reason=reason))

    def _start(self, nodes: tuple[str, ...]) -> None:
        self._eligible, self._reason = inf, ""
        attempt = Attempt(self, self._job, self._restart, nodes)
        before = [one.outcome for one in self.attempts]
        self.attempts.append(attempt)
        costs, scenario = self.scenario.costs, self.scenario
        self.timeline.after(SQUEUE, self._running, attempt)
        self.timeline.after(costs.launcher, lambda: attempt.start(self._begun(before)))
        limit = min(scenario.limit or inf, self._window()[0] - self.timeline.now)
        if limit < inf:
            if scenario.warn:
                warned = max(0.0, limit - scenario.warn)
                self.timeline.after(warned, lambda: attempt.hear(la.TimeLimitNear(self.timeline.now)))
            self.timeline.after(limit, self._time_is_up, attempt)

    def _begun(self, before: list[ev.OutcomeSeen | None]) -> la.AttemptStarted:
        """What a launcher reads of the attempts before its own."""
        now, durable = self.timeline.now, self.durable()
        known = [o for o in before if o is not None]
        active = (x.node for x in self.state.isolation.exclusions if x.until is None or x.until > now)
        return la.AttemptStarted(
            now,
            durable,
            step=max((o.step for o in known), default=-1),
            stuck=la.without_progress(before, durable),
            isolated=tuple(sorted(active)),
            taken=tuple(replace(t, at=t.at - (now - o.at)) for o in known for t in o.taken),
            lacked=bool(before) and before[-1] is not None and before[-1].cause in ("isolated_nodes", PREFLIGHT),
            memory=self.scenario.costs.memory,
            probation=on_probation(self.state, now) if self.scenario.probation else (),
        )

    def _running(self, attempt: Attempt) -> None:
        if not attempt.over:
            job, restart = attempt.state.job_id, attempt.state.restart
            nodes = tuple(n for n in attempt.nodes if n not in attempt.released)
            self.tell(ev.JobSeen(self.timeline.now, job, restart, "RUNNING", nodes=nodes, batch_host=nodes[0]))

    def _time_is_up(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        attempt.synchronize()
        attempt.lives = False
        if attempt.training is not None and attempt.training.stopped is None:
            attempt.training.stopped = self.timeline.now
        job, restart = attempt.state.job_id, attempt.state.restart
        self.tell(ev.JobSeen(self.timeline.now, job, restart, "TIMEOUT"))

    # --- checkpoints ---

    def durable(self) -> int:
        """Return the newest durable step of the run."""
        return max(self._durable, self.attempt.durable() if self.attempt is not None else -1)

    def keep_durable(self, step: int = -1) -> None:
        self._durable = max(self.durable(), step)

    def roll_back(self, step: int) -> None:
        self._durable = step

    # --- nodes ---

    def _failed(self, node: Node, fault: Fault) -> None:
        attempt = self.attempt
        if attempt is not None and node.name in attempt.nodes:
            self._faults += 1
            attempt.fail(node, fault)

    def _returned(self, node: Node) -> None:
        known = self.state.isolation.of(node.name)
        if known is not None and known.until is None and self.scenario.lifts:
            request = f"lift-{len(self.state.isolation.lifts) + 1}"
            self.tell(ev.LiftRequested(self.timeline.now, "administrator", request, (node.name,)))
        self._schedule()

    def _noticed(self, node: Node) -> bool:
        attempt = self.attempt
        if attempt is None or node.name not in attempt.nodes or node.name in attempt.state.nodes.given_up:
            return False
        attempt.synchronize()
        self._drained_in_job(attempt, node.name)
        return True

    # --- the result ---

    def history(self) -> goodput.History:
        attempts = []
        for one in self.attempts:
            end = {"step": one.outcome.step, "cause": one.outcome.cause} if one.outcome is not None else {}
            attempts.append(goodput.attempt_of(one.name, one.records, one.progress, end))
        return self._history.merged(attempts, self.timeline.now, alive=True)

    def _outcome(self, horizon: float, phase: str, verdict: str) -> Outcome:
        state = self.state
        account = goodput.account(self.history())
        closed = (i for i in state.incidents if i.result == "recovered" and i.ended_at is not None)
        recoveries = tuple(
            (i.diagnosis.cause if i.diagnosis is not None else "", (i.ended_at or 0.0) - i.began) for i in closed
        )
        if phase == "done":
            horizon = self.timeline.now - BEGIN
        return Outcome(
            self.seed,
            account.whole,
            horizon,
            (max((one.furthest for one in self.attempts), default=-1) + 1) * self.scenario.costs.step,
            phase,
            verdict,
            self._faults,
            len(state.incidents) + (state.incident is not None),
            len(self.attempts),
            sum(r["type"] == "launch" for one in self.attempts for r in one.records),
            self._drained,
            self._excluded,
            self._wrong,
            self.unseen,
            recoveries,
        )
