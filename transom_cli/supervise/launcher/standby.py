"""Keeps the next launch's ranks ready while this one trains (`launch.standby`).

The step of the next launch is started early, on the same nodes: its wrappers and interpreters have what Slurm gives
ranks (control group, binding, limits), import what rank 0 imports, and wait. When a launch on these nodes begins, one
line of standard input, which srun broadcasts, lets them go. Any other start is an ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.group import Group
from transom_cli.supervise.launcher.journal import JournalWriter
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import WRAPPER, StepPlan, TrainingStep

SETTLED = 5.0  # seconds for which a launch must step before standbys take CPU time from it
PATIENCE = 5.0  # seconds for a standby step to end
TRIES = 3  # standbys of one attempt that may end by themselves


class Standby:
    """The standby step of one launch. Not thread-safe."""

    def __init__(
        self, allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, journal: JournalWriter,
        took: Callable[[int], None],
    ) -> None:  # fmt: skip
        """took: called with a launch whose ranks, or lost ranks, standbys have become."""
        self._allocation, self._options, self._attempt, self._journal = allocation, options, attempt, journal
        self._took = took
        self._step: TrainingStep | None = None
        self._launch = -1
        self._nodes: tuple[str, ...] = ()
        self._settled: tuple[int, float] = (-1, 0.0)  # a launch, and when it was first seen to step
        self._ended = 0

    def look(self, launch: int, nodes: tuple[str, ...], master: str, now: float) -> None:
        """Start the standbys of the next launch once this one has stepped for a while."""
        if self._settled[0] != launch:
            self._settled = (launch, now)
        if self._step is not None:
            if self._step.code is None:
                return
            self._ended += 1
            self._journal("standby", what="ended", nodes=self._nodes, words=f"exit code {self._step.code}")
            self._step = None
        own = all(node not in self._allocation.borrowed for node in nodes)
        due = own and self._ended < TRIES and now - self._settled[1] >= SETTLED
        if due and self._attempt.modules.exists():
            self._start(launch + 1, nodes, master)

    def form(self, group: Group) -> TrainingStep | None:
        """Let the standbys of this launch go, or those of its lost ranks. None if there are none for these nodes."""
        step, fits = self._step, self._launch == group.launch and self._nodes == group.nodes
        if step is None or not fits:
            if group.former is not None and self._options.keeps_standby:
                why = "no standby is ready" if step is None else "the standbys are on other nodes"
                self._journal("standby", what="not used", nodes=group.nodes, words=f"in launch {group.launch}: {why}")
            self.drop()
            return None
        self._step = None
        only = ",".join(map(str, group.lost))
        if step.code is None and step.go({**group.rendezvous, paths.ONLY: only} if only else group.rendezvous):
            who = f"{'rank' if len(group.lost) == 1 else 'ranks'} {only}" if only else "the ranks"
            was = "was" if len(group.lost) == 1 else "were"
            self._journal(
                "standby", what="used", nodes=group.nodes, words=f"{who} of launch {group.launch} {was} ready"
            )
            self._took(group.launch)
            return step
        _end(step)
        return None

    def drop(self) -> None:
        """End the standbys."""
        if self._step is not None:
            _end(self._step)
            self._step = None

    def _start(self, launch: int, nodes: tuple[str, ...], master: str) -> None:
        allocation, options, attempt = self._allocation, self._options, self._attempt
        if hosts := launchplan.hosts_file(allocation, options, nodes):
            make_private(attempt.hosts(launch).parent)
            publish_text(attempt.hosts(launch), hosts)
        argv = launchplan.training_argv(
            allocation, options, attempt, launch, nodes, wrapper=WRAPPER, master=master, standby=True
        )
        env = launchplan.training_env(os.environ, master, 0, options.run)
        if options.recovers:
            env[paths.RECOVERABLE] = "1"
        self._launch, self._nodes = launch, nodes
        with contextlib.suppress(OSError):
            tasks = options.tasks_on_node * len(nodes)
            self._step = TrainingStep(StepPlan(argv, env, nodes, tasks, standby=True), attempt.exits(launch))
            self._journal("standby", what="started", nodes=nodes, words=f"for launch {launch}")


def _end(step: TrainingStep) -> None:
    """End a standby step. Its wrappers end when their input does; with a dead node, srun would not."""
    step.leave()

    def kill() -> None:
        if not step.wait(PATIENCE):
            step.kill()

    threading.Thread(target=kill, name="standby", daemon=True).start()
