"""Does what the launcher's core orders of a launch: start it, have it save, keep what it held, end it, read its logs.

What may take long is done in a thread of its own, and the answer comes into the inbox: dead nodes and slow ones must
not keep the launcher's loop from hearing Slurm's signals.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import transom_cli
from transom_cli.ckpt import fence
from transom_cli.ckpt.restore.rollback import Rollback, roll_back
from transom_cli.core.launcher import (
    THIS_LAUNCHER,
    End,
    Ended,
    Flush,
    Flushing,
    GoBack,
    Heard,
    Keep,
    Kept,
    NotStarted,
    Read,
    ReadLogs,
    Start,
)
from transom_cli.errors import TransomError
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir
from transom_cli.supervise.examine import examine
from transom_cli.supervise.follow import newest_checkpoint
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.agents import GRACE, Agents
from transom_cli.supervise.launcher.flushing import agree
from transom_cli.supervise.launcher.hangwords import HangTold, hang_told
from transom_cli.supervise.launcher.leftovers import Leftovers
from transom_cli.supervise.launcher.log import say
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.rescue import rescue
from transom_cli.supervise.launcher.revive import Journal
from transom_cli.supervise.launcher.training import TrainingStep

SRUN_END = 10.0  # seconds for srun to see that all its tasks have ended
WRAPPER = Path(transom_cli.__file__).resolve().parent / "supervise" / "agent" / "rank.py"


class LaunchHands:
    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        agents: Agents,
        inbox: queue.SimpleQueue[Heard],
        journal: Journal,
    ) -> None:
        self._allocation, self._options, self._attempt = allocation, options, attempt
        self._agents, self._inbox = agents, inbox
        self._nodes: tuple[str, ...] = ()  # of the present launch
        self._said_rendezvous = False
        self._cannot_go_back = ""  # why
        self.leftovers = Leftovers(agents.end, journal)
        self.step: TrainingStep | None = None

    def start(self, order: Start) -> list[str] | None:
        """srun's command line; None, and a word in the inbox, when the launch cannot be asked for."""
        if self._cannot_go_back:
            self._inbox.put(NotStarted(0.0, order.launch, self._cannot_go_back))
            return None
        try:
            return self._start(order.launch, order.nodes)
        except (OSError, TransomError) as error:
            words = f"launch {order.launch} cannot be started: {error}"
            self._inbox.put(NotStarted(0.0, order.launch, words))
            return None

    def _start(self, launch: int, nodes: tuple[str, ...]) -> list[str]:
        allocation, options, attempt = self._allocation, self._options, self._attempt
        for path in (attempt.logs(launch), attempt.exits(launch)):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hosts := launchplan.hosts_file(allocation, options, nodes):
            path = attempt.hosts(launch)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            publish_text(path, hosts)
        master = self._agents.addresses[nodes[0]]
        port = launchplan.port_for(allocation, launch)
        self._say_rendezvous()
        env = launchplan.training_env(os.environ, master, port, options.run)
        argv = launchplan.training_argv(
            allocation, options, attempt, launch, nodes, wrapper=WRAPPER, master=master, port=port
        )
        self._fence(launch)
        tasks = options.tasks_on_node * len(nodes)
        self.step = TrainingStep(argv, env, attempt.exits(launch), nodes, tasks)
        self._nodes = nodes
        return argv

    def _say_rendezvous(self) -> None:
        """Once. torchrun's ranks find each other by its flags, and never by what is set here."""
        theirs = [f"{name}={os.environ[name]}" for name in launchplan.RENDEZVOUS if name in os.environ]
        if theirs and not self._said_rendezvous and self._options.kind == "srun":
            self._said_rendezvous = True
            why = "each launch has a rendezvous of its own, where no rank of an older one can join"
            say(f"transom: {' '.join(theirs)} in the batch script's environment is not used: {why}")

    def _fence(self, launch: int) -> None:
        """No room to write it is no reason not to train: there may be some by the next checkpoint."""
        try:
            fence.take(self._options.checkpoints, f"{self._attempt.name}.{launch}")
        except OSError as error:
            say(f"transom: ranks of older launches are not fenced off from the checkpoints: {error}")

    def go_back(self, order: GoBack) -> None:
        """A launch that would go on from the bad state is none to start."""
        name = f"{self._attempt.name}.{order.launch}"
        try:
            self._fence(order.launch)
            moved = roll_back(self._options.checkpoints, Rollback(name, order.to, order.skip, order.why, time.time()))
        except (OSError, TransomError) as error:
            self._cannot_go_back = f"the training cannot be set back to step {order.to}: {error}"
            say(f"transom: {self._cannot_go_back}")
            return
        aside = f"; {', '.join(moved)} are kept as step-<n>.undone-<k>" if moved else ""
        say(f"transom: launch {order.launch} goes on from step {order.to}{aside}")

    def flush(self, order: Flush, overdue: tuple[str, ...], step_time: float) -> None:
        """overdue: nodes that cannot be seen now, and would not answer either."""
        world = self._options.tasks_per_node * len(self._nodes)
        nodes, launch = self._nodes, order.launch

        def work() -> Heard:
            if any(n in nodes for n in overdue):
                return Flushing(0.0, launch, -1, f"nothing is heard of {', '.join(overdue)}", keeps=True, again=True)
            return agree(lambda step: self._agents.flush(launch, nodes, step), launch, world, step_time)

        self._thread("flush", work, lambda error: Flushing(0.0, launch, -1, repr(error), keeps=True, again=True))

    def keep(self, order: Keep) -> None:
        """All nodes of the allocation are asked: those that a spare has replaced may hold what nobody else does."""
        launch, checkpoints = order.launch, self._options.checkpoints

        def work() -> Heard:
            words = rescue(self._agents.memory, self._allocation.nodes, checkpoints, launch)
            return Kept(0.0, launch, newest_checkpoint(checkpoints), words)

        self._thread("keep", work, lambda error: Kept(0.0, launch, -1, f"what is in memory is lost: {error!r}"))

    def end(self, order: End) -> None:
        """A launch whose state is durable is ended without grace: nothing of it is worth waiting for."""
        step, nodes, launch = self.step, self._nodes, order.launch
        grace = GRACE if order.incident else 0.0

        def work() -> Heard:
            lines = self._evidence(launch, order.incident, nodes) if order.evidence else ()
            ended = self._agents.end(launch, nodes, grace, order.incident)
            if evidence := (*lines, *ended.evidence):  # what it tells first: not all of it need be told
                told = hang_told(self._attempt.evidence(order.incident)) if order.incident else HangTold()
                ended = replace(ended, evidence=(*told.words, *evidence), suspects=told.nodes)
            self.leftovers.left(launch, ended, nodes)
            if step is None:
                return ended
            if ended.unheard:
                step.kill()  # it would wait for those nodes
            elif not step.wait(SRUN_END):
                step.kill()
                lives = (THIS_LAUNCHER, f"srun of launch {launch}")
                ended = replace(ended, survivors=(*ended.survivors, lives))
            with contextlib.suppress(OSError):  # a run directory that does not answer makes nothing live on
                ended = replace(ended, exits=step.exits())
            return ended

        def failed(error: Exception) -> Heard:  # a fault of ours must not leave the attempt waiting for ever
            return Ended(0.0, launch, survivors=((THIS_LAUNCHER, repr(error)),))

        self._thread("end", work, failed)

    def _evidence(self, launch: int, incident: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Whatever keeps it from being taken: the launch must be ended all the same."""
        try:
            return self._agents.evidence(launch, incident, nodes)
        except Exception as error:
            return (f"no evidence: {error!r}",)

    def read(self, order: ReadLogs) -> None:
        nodes = self._nodes

        def work() -> Heard:
            asked = self._agents.logs(order.launch, nodes)
            found = examine("", self._options.run, self._attempt, order.rank, 0.0, asked)
            return Read(0.0, order.launch, found.category, found.line, found.where)

        def failed(error: Exception) -> Heard:
            return Read(0.0, order.launch, "unknown", repr(error), "the logs could not be read")

        self._thread("read", work, failed)

    def _thread(self, name: str, work: Callable[[], Heard], failed: Callable[[Exception], Heard]) -> None:
        def run() -> None:
            try:
                self._inbox.put(work())
            except Exception as error:
                self._inbox.put(failed(error))

        threading.Thread(target=run, name=name, daemon=True).start()
