"""An operator that can be killed between any two things it does, beside a fake cluster that outlives it.

The core, the journal, the hands' own procedures and `restart_job` are the real ones; threads and clocks are not: every
action is carried out at once, on the cluster's own time.
"""

from __future__ import annotations

import queue
from pathlib import Path

from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.state import Policy, State
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, NoSuchJob, SlurmUnknown, Submission
from transom_cli.supervise.journal import Journal, fold, step_and_remember, write_header
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders
from transom_cli.supervise.operator.slurm_poller import job_seen

WIDTH = 3


_FUSED = {"submit", "jobs", "job", "nodes", "requeue_hold", "shrink", "update_pending", "release", "start_now"}
_FUSED |= {"cancel", "drain", "set_comment"}


class Killed(BaseException):
    """kill -9, here and now."""


class Fuse:
    """Burns at the `at`-th point that is passed."""

    def __init__(self, at: int | None) -> None:
        self.left = at

    def passed(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1


class FusedSlurm(FakeSlurm):
    """Before and after each call the caller may be killed. At no moment may two of our jobs run."""

    fuse = Fuse(None)

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name not in _FUSED:
            return value

        def call(*args: object, **kwargs: object) -> object:
            self.fuse.passed()
            answer = value(*args, **kwargs)  # type: ignore[operator]
            self.fuse.passed()
            running = [j.job_id for j in self.cluster.jobs.values() if j.state is JobState.RUNNING]
            assert len(running) <= 1, f"two live jobs: {running}"
            return answer

        return call


class FakeClock(Clock):
    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm = slurm

    def now(self) -> float:
        return self._slurm.clock()


class SyncHands(Executor):
    """The real procedures; their pauses pass on the cluster's time."""

    def _sleep(self, seconds: float) -> None:
        assert isinstance(self._slurm, FakeSlurm)
        self._slurm.sleep(seconds)


class World:
    def __init__(self, folder: Path, victim: str, *, admin: bool = True) -> None:
        self.run = RunDir(folder)
        script = folder / "job.sbatch"
        script.write_text("#!/bin/sh\n")
        self.victim = victim
        self.slurm = FusedSlurm(("n1", "n2", "n3", "n4", "n5"), admin=admin)
        self.orders = Orders(self.run, Submission(script, (f"--nodes={WIDTH}",)))
        self.died = False
        self.operators = 0
        write_header(self.run.journal, Policy(backoff=1.0), WIDTH)

    def live(self, kills: tuple[int, ...], absence: float) -> State:
        """Operators follow one another, each killed at its point; the last one lives until the run is over."""
        for at in kills:
            self.slurm.fuse = Fuse(at)
            try:
                return Operator(self).work()
            except Killed:
                self.slurm.fuse = Fuse(None)
                self.slurm.sleep(absence)
        self.slurm.fuse = Fuse(None)
        return Operator(self).work()


class Operator:
    """One life of an operator, without threads."""

    def __init__(self, world: World) -> None:
        world.operators += 1
        self.world = world
        self.slurm = world.slurm
        self.hands = SyncHands(world.orders, self.slurm, self._reach, FakeClock(self.slurm), queue.SimpleQueue())
        self.journal = Journal(world.run.journal, world.operators)
        self.told: set[str] = set()
        self.waiting: list[Action] = []
        self.tries: dict[str, int] = {}

    def _reach(self, node: str, *_: object) -> Finding:
        alive = self.slurm.cluster.nodes[node].alive
        return Finding("reach", Verdict.PASS if alive else Verdict.FAIL, node, "asked")

    def work(self) -> State:
        self.journal.append(ev.Started(self.slurm.clock(), self.world.operators))
        self.slurm.fuse.passed()
        self.state = fold(self.world.run.journal).state
        self.waiting = list(self.state.pending)
        for _ in range(2000):
            if self.state.phase.over:
                return self.state
            self._act()
            self.slurm.sleep(0.5)
            self._observe()
        raise AssertionError(f"it hangs: {self.state.phase}, {self.state.incident}, {self.state.pending}")

    def _hear(self, event: ev.Event) -> None:
        self.state, actions = step_and_remember(self.state, event, self.journal)
        self.slurm.fuse.passed()  # remembered, and not yet done
        self.waiting += actions

    def _act(self) -> None:
        todo, self.waiting = self.waiting, []
        for action in todo:
            try:
                answer = self.hands._perform(action)
            except SlurmUnknown:
                self.waiting.append(action)  # as the hands do: again, later
                continue
            self.slurm.fuse.passed()  # done, and not yet remembered
            self._hear(answer)

    def _observe(self) -> None:
        now = self.slurm.clock()
        if not self.state.job.id:
            return
        try:
            job = FakeSlurm.job(self.slurm, self.state.job.id)
            if job.state is JobState.RUNNING:
                self._files(now, f"{job.job_id}.{job.restarts}", job.nodes)
            self._hear(job_seen(now, FakeSlurm.job(self.slurm, self.state.job.id)))
        except NoSuchJob:
            self._hear(ev.JobGone(now, self.state.job.id))
        except SlurmUnknown as error:
            self._hear(ev.SlurmLost(now, error.why))
        self._hear(ev.Tick(now))

    def _files(self, now: float, attempt: str, nodes: tuple[str, ...]) -> None:
        """The first attempt loses a node after its first step; any later one ends well."""
        if self.state.attempt != attempt:
            return
        if f"launch {attempt}" not in self.told:
            self.told.add(f"launch {attempt}")
            self._hear(ev.LaunchSeen(now, attempt, 0, nodes, 2 * WIDTH))
            self._hear(ev.StepSeen(now, attempt, 10))
            self._hear(ev.CheckpointSeen(now, 10))
        elif not self.world.died:
            self.world.died = True
            self.slurm.kill_node(self.world.victim)
        elif self.world.victim in nodes:
            if f"silent {attempt}" not in self.told:
                self.told.add(f"silent {attempt}")
                self._hear(ev.NodeSilent(now, attempt, self.world.victim, 11.0))
        elif self.state.incident is None:
            job_id = int(attempt.partition(".")[0])
            if self.slurm.cluster.jobs[job_id].state is JobState.RUNNING:
                self.slurm.finish(job_id)
