"""What the launcher sees of a launch: how its ranks end, how they step, which nodes fall silent, what is durable.

Each look gives events for the launcher's core, one after the other: the core has heard the one before when the next is
made, so a look must be run through to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from transom_cli.core import launcher
from transom_cli.core.events import Stall
from transom_cli.core.launcher import Event, Phase, Reason, State
from transom_cli.layout import AttemptDir
from transom_cli.supervise.beatwatch import BeatWatch
from transom_cli.supervise.follow import newest_checkpoint
from transom_cli.supervise.launcher.plan import LaunchOptions
from transom_cli.supervise.launcher.progress import Progress
from transom_cli.supervise.launcher.training import TrainingStep

DURABLE = 1.0  # seconds between two looks for a newer checkpoint


class Sight:
    """`state`: the core's, as it is now. `dead`: whether a node's slurmd gives no answer either."""

    def __init__(
        self,
        options: LaunchOptions,
        attempt: AttemptDir,
        watch: BeatWatch,
        state: Callable[[], State],
        dead: Callable[[str], bool],
    ) -> None:
        self._options, self._attempt, self._watch = options, attempt, watch
        self._state, self._dead = state, dead
        self._told = launcher.RanksExited(0.0, 0, ())
        self._found: Stall | None = None
        self._looked_durable = float("-inf")
        self._progress = Progress(attempt, lambda: watch.nodes_of((0,)))
        self._rung = Phase.CHECKING

    @property
    def stepping(self) -> bool:
        """Whether ranks of the present launch have made a step, as far as the beats tell."""
        state, launch = self._state(), self._watch.launch
        return launch == state.launch.number and state.phase is Phase.TRAINING and self._watch.step(launch) >= 0

    def of_step(self, now: float, step: TrainingStep) -> Iterator[Event]:
        """The tasks of the training step: whether they are there, and how they ended."""
        code = step.code  # before the exits: what was written until srun ended is read
        launch = self._state().launch.number
        if step.waits:
            yield launcher.SlurmAway(now, launch, step.waits)
        if not self._state().launch.tasks_seen and self._has_appeared(launch):
            yield launcher.TasksSeen(now, launch)
        try:
            told = launcher.RanksExited(0.0, launch, step.exits(), code is not None, code)
        except OSError:
            return  # the run directory does not answer: seen at the next look
        if told != self._told:
            self._told = told
            if told.over or any(x.bad for x in told.exits):
                self._progress.settle()
            yield launcher.RanksExited(now, told.launch, told.exits, told.over, told.srun_code)

    def of_beats(self, now: float) -> Iterator[Event]:
        """The beat tables, which have just been read."""
        watch = self._watch
        launch = watch.launch  # after a relaunch the tables are about the launch before it for a moment
        self._write_progress(launch)
        yield launcher.Stepped(now, launch, watch.step(launch), watch.since_start(launch))
        for node, silent_for in watch.alone(now):
            if self._dead(node):
                yield launcher.NodeUnreachable(now, node, silent_for, watch.unusual)
        found = watch.found
        if found is not None and self._state().phase is Phase.TRAINING and not watch.blind(now):
            yield from self._durable(now, at_once=found is not self._found)
            self._found = found
            self._progress.settle()
            yield launcher.Stalled(now, launch, found)
        yield from self._durable(now, at_once=self._state().departure.reason is not Reason.NONE)

    def _write_progress(self, launch: int) -> None:
        """Also of a launch that is ended though its ranks stepped: what is found against a node is a fault too."""
        step, since_start = self._watch.step(launch), self._watch.since_start(launch)
        self._progress.look(launch, step, time.time(), since_start=since_start)
        rung = self._state().phase
        if rung is not self._rung and rung is not Phase.TRAINING:
            self._progress.settle()
        self._rung = rung

    def _durable(self, now: float, *, at_once: bool) -> Iterator[Event]:
        if not at_once and now - self._looked_durable < DURABLE:
            return
        self._looked_durable = now
        try:
            newest = newest_checkpoint(self._options.checkpoints)
        except OSError:
            return
        yield launcher.CheckpointDurable(now, newest)

    def _has_appeared(self, launch: int) -> bool:
        """slurmstepd makes a task's log when it starts the task."""
        if self._watch.launch == launch:
            return True
        try:
            return any(True for _ in self._attempt.logs(launch).iterdir())
        except OSError:
            return False
