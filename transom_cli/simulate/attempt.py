"""One attempt of a simulated run: the real launcher core, and what answers its actions. Pure.

The training's progress is computed, not simulated step by step: a launch steps at an even pace between two events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import exp
from typing import TYPE_CHECKING, Any

from transom_cli.ckpt.snapshot.protection import groups, parse, survives
from transom_cli.core import events as ev
from transom_cli.core import launcher as la
from transom_cli.core.codec import plain
from transom_cli.core.launcher.actions import Journal
from transom_cli.diagnose.clue import Silent
from transom_cli.layout import attempt_name
from transom_cli.simulate.fleet import Node
from transom_cli.simulate.model import CORRUPT, CRASH, HANG, LOST, SLOW, Costs, Fault
from transom_cli.simulate.timeline import Alarm

if TYPE_CHECKING:
    from transom_cli.simulate.cluster import Cluster

SEEN = 0.2  # seconds until the launcher sees the exit of a rank
CULPRIT = 0.9  # probability that the hanging node stands out


class Training:
    """The steps of one launch. base: the step that it resumes from, -1: none. first: when the next one is done."""

    def __init__(self, launch: int, nodes: tuple[str, ...], base: int, first: float, costs: Costs) -> None:
        self.launch, self.nodes, self.base, self.first = launch, nodes, base, first
        self.stopped: float | None = None
        self.factor = 1.0
        self._origin = base  # where saves and stalls are counted from
        self._costs = costs

    @property
    def pace(self) -> float:
        return self._costs.pace + self._costs.step * (self.factor - 1.0)

    def step(self, at: float) -> int:
        """Return the newest step that is done; -1 before the first."""
        at = at if self.stopped is None else min(at, self.stopped)
        return self.base + 1 + int((at - self.first) / self.pace + 1e-6) if at >= self.first else -1

    def time_of(self, step: int) -> float:
        return self.first + (step - self.base - 1) * self.pace

    def saved(self, at: float, every: int, delay: float) -> int:
        """Return the newest multiple of `every` whose step was done `delay` seconds ago; else the resumed step."""
        step = self.step(at - delay) if every else -1
        return max(self._origin, step // every * every) if step > 0 and every else self._origin

    def stalled(self, at: float) -> float:
        every, step = self._costs.save_every, self.step(at)
        return (step // every - max(self._origin, 0) // every) * self._costs.stall if every and step >= 0 else 0.0

    def slow_down(self, at: float, factor: float) -> None:
        step = self.step(at)
        if step < 0:
            self.factor = factor
            return
        self.factor = factor
        self.base, self.first = step, at + self.pace


class Attempt:
    """The launcher of one attempt, its journal files and its training."""

    def __init__(self, cluster: Cluster, job_id: int, restart: int, nodes: tuple[str, ...]) -> None:
        self._cluster, self._time, self._costs = cluster, cluster.timeline, cluster.scenario.costs
        self.name, self.nodes = attempt_name(job_id, restart), nodes
        wanted = min(cluster.scenario.nodes, len(nodes))
        self.state = la.State(
            job_id,
            restart,
            la.Nodes(nodes, wanted, cluster.scenario.fewest, cluster.scenario.unit, batch_host=nodes[0]),
            1,
            cluster.scenario.launcher,
        )
        self.records: list[dict[str, Any]] = []
        self.progress: list[dict[str, Any]] = []
        self.outcome: ev.OutcomeSeen | None = None
        self.released: set[str] = set()  # nodes given back to Slurm
        self.lives = True  # the launcher's process
        self.over = False  # Slurm has ended the attempt
        self.training: Training | None = None
        self._memory = -1  # the newest step in the nodes' memory
        self._cause: tuple[Node, Fault] | None = None  # what ended the present launch
        self._checked_spares = False
        self._doubted: set[str] = set()
        self._alarm = Alarm(self._time, lambda: self.hear(la.Tick(self._time.now)))

    def start(self, begun: la.AttemptStarted) -> None:
        self._record("attempt", nodes=self.nodes, host=self.nodes[0], pid=1)
        self.hear(replace(begun, at=self._time.now))

    def hear(self, event: la.Event) -> None:
        if not self.lives or self.over:
            return
        self.state, actions = la.decide(self.state, event)
        for action in actions:
            self._do(action)
        due = la.next_deadline(self.state)
        if due is not None and due <= self._time.now and isinstance(event, la.Tick):
            due = None  # it waits for something else than time
        self._alarm.set(due)

    def step(self) -> int:
        return self.training.step(self._time.now) if self.training is not None else -1

    @property
    def furthest(self) -> int:
        """The newest step of all launches."""
        return max(self.step(), *(line["step"] for line in self.progress), -1)

    def durable(self) -> int:
        """Return the newest durable step of the present launch."""
        costs, training = self._costs, self.training
        if training is None or not costs.persist_every:
            return -1
        return training.saved(self._time.now, costs.save_every * costs.persist_every, costs.persist)

    def synchronize(self) -> None:
        """Report the progress to both deciders: between two events it changes nothing else."""
        training, now = self.training, self._time.now
        step = self.step()
        durable = self._cluster.durable()
        if training is not None and self.state.progress.durable < durable == self.durable():
            when = min(now, training.time_of(durable) + self._costs.persist)
            self.hear(la.Stepped(when, training.launch, training.step(when)))
            self.hear(la.CheckpointDurable(when, durable))
        if training is not None and step >= 0:
            self.hear(la.Stepped(now, training.launch, step))
            self._sample()
            self._cluster.tell(ev.StepSeen(now, self.name, step))
        self.hear(la.CheckpointDurable(now, durable))
        self._cluster.tell(ev.CheckpointSeen(now, durable))

    # --- answers ---

    def _answer(self, delay: float, event: la.Event) -> None:
        self._time.after(delay, self._deliver, event)

    def _deliver(self, event: la.Event) -> None:
        self.hear(replace(event, at=self._time.now))

    def _some(self, seconds: float) -> float:
        """A duration around `seconds`."""
        noise = self._costs.noise
        return seconds * exp(self._time.random.gauss(0.0, noise)) if noise else seconds

    def _do(self, action: la.Action) -> None:
        costs, now = self._costs, self._time.now
        if isinstance(action, la.StartLaunch):
            self._launch(action)
        elif isinstance(action, la.CheckNodes):
            deep = action.tier == "deep"
            self._time.after(self._some(costs.deep if deep else costs.preflight), self._checked, action, deep)
        elif isinstance(action, la.EndLaunch):
            self._stop()
            self._time.after(self._some(costs.end + (costs.evidence if action.evidence else 0.0)), self._ended, action)
        elif isinstance(action, la.ReadLogs):
            fault = self._cause[1] if self._cause is not None else Fault("none", 0)
            says = fault.effect == CRASH
            where = f"rank-{action.rank}.log" if says and action.rank is not None else "logs"
            category, line = (fault.category, fault.line) if says else ("unknown", "")
            self._answer(self._some(costs.logs), la.LogsRead(now, action.launch, category, line, where))
        elif isinstance(action, la.RequestCheckpoint):
            self._plan_final(action.launch)
        elif isinstance(action, la.PersistMemory):
            self._time.after(self._some(costs.persist), self._persisted, action.launch)
        elif isinstance(action, Journal):
            self._record("recovery", **vars(action))
            self._report(ev.RecoverySeen(now, self.name, **vars(action)))
        elif isinstance(action, la.RollBack):
            self._memory = -1
            self._cluster.roll_back(action.to)
        elif isinstance(action, la.FinishAttempt):
            self._stop()
            self.outcome = action.outcome
            self._record("outcome", status=action.outcome.status, why=action.outcome.why, exit_code=action.exit_code)
            self._report(action.outcome)

    def _report(self, event: ev.Event) -> None:
        """The operator reads it from a file, a moment later."""
        self._time.after(self._costs.look, self._cluster.tell_now, event)

    def _record(self, kind: str, **fields: Any) -> None:
        record = {"type": kind, "wall": self._time.now, "launch": self.state.launch.number}
        self.records.append(record | {name: plain(value) for name, value in fields.items()})

    def _sample(self) -> None:
        training, now = self.training, self._time.now
        if training is None or (step := training.step(now)) < 0:
            return
        at = min(now, training.time_of(step)) if training.stopped is None else training.time_of(step)
        line = {"wall": at, "launch": training.launch, "step": step, "seconds": {"checkpoint": training.stalled(now)}}
        if not self.progress or self.progress[-1]["step"] != step or self.progress[-1]["launch"] != training.launch:
            self.progress.append(line)

    # --- a launch ---

    def _launch(self, action: la.StartLaunch) -> None:
        now, costs, cluster = self._time.now, self._costs, self._cluster
        carrying = set(action.nodes)
        idle = tuple(n for n in self.nodes if n not in carrying)
        nodes = [cluster.fleet.nodes[n] for n in action.nodes]
        self._record("launch", nodes=action.nodes, idle=idle, world_size=len(nodes), argv=(), faults=action.faults)
        self._report(ev.LaunchSeen(now, self.name, action.launch, action.nodes, len(nodes), idle, faults=action.faults))
        base, in_memory = max((self._memory, True), (cluster.durable(), False))
        read = costs.read_memory if in_memory else costs.read_disk if base >= 0 else 0.0
        same = self.training is not None and self.training.nodes == action.nodes
        first = now + self._some((costs.in_process if same and costs.in_process else costs.start) + read)
        self._memory, self._cause = base, None
        step = costs.step * cluster.scenario.nodes / len(nodes)
        self.training = Training(action.launch, action.nodes, base, first, replace(costs, step=step))
        self._answer(1.0, la.TasksSeen(now, action.launch))
        self._time.at(first, self._first_step, action.launch)
        for node in nodes:
            if not node.up:
                self._lose(node)
            elif node.broken is not None:
                self._time.after(node.random.expovariate(1 / node.broken.again), self._again, action.launch, node)
        if not self._checked_spares:
            self._checked_spares = True
            for name in idle:
                self._answer(5.0, la.SpareChecked(now, name, cluster.fleet.nodes[name].up))

    def _running(self, launch: int) -> Training | None:
        training = self.training
        live = training is not None and training.launch == launch and training.stopped is None
        return training if live and self.lives and not self.over else None

    def _first_step(self, launch: int) -> None:
        training = self._running(launch)
        if training is None:
            return
        self.synchronize()
        length = self._cluster.scenario.steps
        if length:
            self._time.at(training.time_of(length - 1), self._done, launch)

    def _done(self, launch: int) -> None:
        training = self._running(launch)
        if training is None:
            return
        if training.step(self._time.now) < self._cluster.scenario.steps - 1:  # a slow node has delayed it
            self._time.at(training.time_of(self._cluster.scenario.steps - 1), self._done, launch)
            return
        self.synchronize()
        exits = self._exits(training.nodes, 0)
        self.hear(la.RanksExited(self._time.now, launch, exits, True, 0))

    def _stop(self) -> None:
        """The ranks step no more."""
        training, now = self.training, self._time.now
        if training is None or training.stopped is not None:
            return
        self.synchronize()
        training.stopped = now
        costs = self._costs
        self._memory = training.saved(now, costs.save_every, costs.copied) if costs.memory else -1
        self._cluster.keep_durable()

    def _exits(self, nodes: Iterable[str], code: int | None, signal: int | None = None) -> tuple[ev.RankExit, ...]:
        training, now = self.training, self._time.now
        assert training is not None
        rank = {name: n for n, name in enumerate(training.nodes)}
        return tuple(ev.RankExit(rank[name], name, code, signal, now, self.step()) for name in nodes)

    def _ended(self, action: la.EndLaunch) -> None:
        training, fleet = self.training, self._cluster.fleet
        if training is None or training.launch != action.launch:
            return
        unheard = tuple(n for n in training.nodes if not fleet.nodes[n].up)
        if unheard:
            protection = parse(self._costs.protect)
            if not survives(groups(training.nodes, protection), protection, unheard):
                self._memory = -1
        others = (n for n in training.nodes if n not in unheard)
        cause = self._cause
        suspects: tuple[str, ...] = ()
        if cause is not None and cause[1].effect == HANG and self._time.random.random() < CULPRIT:
            suspects = (cause[0].name,)  # type: ignore[assignment]
        self.hear(
            la.LaunchEnded(self._time.now, action.launch, self._exits(others, None, 15), unheard, suspects=suspects)
        )

    def _checked(self, action: la.CheckNodes, deep: bool) -> None:
        faults = []
        for name in action.nodes:
            node = self._cluster.fleet.nodes[name]
            fault = node.broken
            if fault is None or not fault.check:
                continue
            if node.random.random() < (fault.found_deep if deep else fault.found):
                faults.append(_finding(name, fault))
        words = f"{len(action.nodes)} nodes checked, {len(faults)} bad"
        self.hear(la.NodesChecked(self._time.now, action.key, tuple(faults), words))

    def _persisted(self, launch: int) -> None:
        cluster, step = self._cluster, self._memory
        if step > cluster.durable():
            cluster.keep_durable(step)
            self.hear(la.MemoryPersisted(self._time.now, launch, step, f"step {step} was written from memory"))
        else:
            self.hear(la.MemoryPersisted(self._time.now, launch, cluster.durable()))

    def _plan_final(self, launch: int) -> None:
        training = self._running(launch)
        if training is None or self.step() < 0 or not self._costs.save_every:
            self._answer(1.0, la.CheckpointPlanned(0.0, launch, -1, "no rank steps", again=True))
            return
        step = self.step() + 2
        self._answer(1.0, la.CheckpointPlanned(0.0, launch, step))
        self._time.at(training.time_of(step) + self._some(self._costs.persist), self._final, launch, step)

    def _final(self, launch: int, step: int) -> None:
        if self._running(launch) is not None:
            self._cluster.keep_durable(step)
            self.synchronize()

    # --- faults ---

    def fail(self, node: Node, fault: Fault) -> None:
        """A node of the attempt fails."""
        training = self.training
        if training is None or node.name not in training.nodes or training.stopped is not None or not self.lives:
            if node.name in self.state.nodes.spares:
                self._fail_spare(node, fault)
            elif not node.up and node.name == self.state.nodes.batch_host:
                self._lose(node)
            return
        if fault.effect == LOST:
            self._stop_for(node, fault)
            self._lose(node)
            if self._costs.reset:
                exits = self._exits((n for n in training.nodes if n != node.name), 1)
                self._answer(self._costs.reset, la.RanksExited(0.0, training.launch, exits))
        elif fault.effect == CRASH:
            self._stop_for(node, fault)
            self._answer(SEEN, la.RanksExited(0.0, training.launch, self._exits((node.name,), 1)))
            self._maybe_found(node, fault)
        elif fault.effect == HANG:
            scenario = self._cluster.scenario
            step, limit = self._stop_for(node, fault), scenario.tight if fault.stopped else scenario.patient
            stall = ev.Stall(step, limit, limit, (training.nodes.index(node.name),), (node.name,))
            self._answer(limit, la.Stalled(0.0, training.launch, stall))
        elif fault.effect == SLOW:
            self.synchronize()
            training.slow_down(self._time.now, max(training.factor, fault.factor))
            self._time.after(self._costs.slow_after, self._slow, training.launch, node, fault)
        elif fault.effect == CORRUPT:
            self._corrupt(training, node, fault)
        else:
            self._answer(1.0, la.FaultsFound(0.0, (replace(_finding(node.name, fault), verdict="SUSPECT"),)))

    def _stop_for(self, node: Node, fault: Fault) -> int:
        step = self.step()
        self._stop()
        self._cause = (node, fault)
        return step

    def _again(self, launch: int, node: Node) -> None:
        if self._running(launch) is not None and node.broken is not None:
            self.fail(node, node.broken)

    def _maybe_found(self, node: Node, fault: Fault) -> None:
        """The agent's own check may find the fault at its next round."""
        if fault.check and node.random.random() < fault.found:
            self._answer(node.random.uniform(0.0, 5.0), la.FaultsFound(0.0, (_finding(node.name, fault),)))

    def _fail_spare(self, node: Node, fault: Fault) -> None:
        if fault.effect == LOST:
            self._answer(self._cluster.scenario.limits.node_silent, la.SpareChecked(0.0, node.name, False, "silent"))
            self._silent(node)
        else:
            self._maybe_found(node, fault)

    def _lose(self, node: Node) -> None:
        """A node stops answering. With the batch host the launcher dies too."""
        self._stop()
        if node.name == self.state.nodes.batch_host:
            self.lives = False
        self._silent(node)
        policy, tight = self.state.policy, self._cluster.scenario.tight
        number = self.training.launch if self.training is not None else -1
        for waited in (max(tight, policy.silent), max(tight, 3 * policy.silent)):
            self._time.after(waited + 0.1, self._unreachable, number, node, waited + 0.1)

    def _silent(self, node: Node) -> None:
        after = self._cluster.scenario.limits.node_silent
        self._time.after(after, self._tell_silent, node, after)

    def _tell_silent(self, node: Node, after: float) -> None:
        if not node.up and not self.over:
            self._cluster.tell(ev.NodeSilent(self._time.now, self.name, node.name, after, self.lives))

    def _unreachable(self, launch: int, node: Node, silent: float) -> None:
        if not node.up and self.training is not None and self.training.launch == launch:
            self.hear(la.NodeUnreachable(self._time.now, node.name, silent, self._cluster.scenario.tight))

    def _slow(self, launch: int, node: Node, fault: Fault) -> None:
        if self._running(launch) is None:
            return
        self.synchronize()
        words = f"{node.name} makes every step {fault.factor:.2g} times as long"
        key, step = f"slow_node/{node.name}", self.step()
        self.hear(la.AnomalyReported(self._time.now, launch, key, "slow_node", words, step, (node.name,)))

    def _corrupt(self, training: Training, node: Node, fault: Fault) -> None:
        """The node computes wrong values from now on. A guard finds it, or nobody does."""
        if node.random.random() >= fault.found:
            self._cluster.unseen += 1
            return
        self.synchronize()
        clean, back = self.step(), self._cluster.durable()
        what = Silent.NODE if node.name in self._doubted else Silent.CORRUPTION
        self._doubted.add(node.name)
        words = f"{node.name} computes other values than its replicas"
        found = la.AnomalyReported(
            0.0, training.launch, what.value, what.value, words, clean, (node.name,), clean, back
        )
        self._time.after(self._costs.guard_after, self._doubt, found)

    def _doubt(self, found: la.AnomalyReported) -> None:
        if self._running(found.launch) is not None:
            self.synchronize()
            self.hear(replace(found, at=self._time.now, step=self.step()))


def _finding(node: str, fault: Fault) -> ev.NodeFault:
    return ev.NodeFault(node, fault.check, "FAIL", fault.line or f"{fault.name} fault", "reset")
