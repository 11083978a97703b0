"""Observes a launch for the launcher's state machine: exits, steps, silent nodes, checkpoints.

Also records the launch's progress.

Each method yields events one by one. The state machine has handled an event when the next one is made, so a caller
must consume all of them.

`progress.jsonl` is the record from which a run's time is accounted for:

    {"wall": seconds, "launch": number, "step": the last step that every rank has done, "seconds": {phase: sum},
     "loss": number, "since_start": true, "framework": name, "epoch": number, "lr": number, "speed": text}

It has the first step of each launch, then a line after 2, 4, 8, ... s and one per minute while there are new steps, and
the last step before an end or a stall, with the time at which it was first seen.

- seconds: per phase, the most that a rank on rank 0's node has spent since its start; absent if unknown.
- loss: the newest value of the lowest rank there that reports one, if it is finite.
- framework, epoch, lr, speed: what rank 0's node has seen in the trainer's log; absent if unknown.
- listens: the ranks save a final checkpoint on request.
- since_start: the step counts from the start of the processes (automatic heartbeats); absent otherwise.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from transom_cli.core import launcher
from transom_cli.core.events import Stall
from transom_cli.core.launcher import Event, Phase, Reason, State
from transom_cli.files import listed, open_private
from transom_cli.heartbeat.step_breakdown import BadStepBreakdown, RankSteps, decode
from transom_cli.heartbeat.table import NodeTable
from transom_cli.layout import AttemptDir
from transom_cli.plural import some
from transom_cli.supervise.attempt_files import newest_checkpoint
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor
from transom_cli.supervise.launcher.journal import JournalWriter, say
from transom_cli.supervise.launcher.plan import LaunchOptions
from transom_cli.supervise.launcher.training import TrainingStep, TrainingSteps

UNSEEN = 60.0  # seconds from a launch's start: agents and ranks of a large job take a while to come up
DURABLE = 1.0  # interval in seconds between searches for a newer checkpoint


class Monitor:
    """`state` returns the present state. `dead`: whether a node's slurmd does not answer either. `steps`: a node's step
    breakdowns as text."""

    def __init__(
        self,
        options: LaunchOptions,
        attempt: AttemptDir,
        watch: HeartbeatMonitor,
        state: Callable[[], State],
        dead: Callable[[str], bool],
        steps: Callable[[str], str] | None = None,
    ) -> None:
        self._options, self._attempt, self._watch = options, attempt, watch
        self._state, self._dead = state, dead
        self._exits = launcher.RanksExited(0.0, 0, ())
        self._found: Stall | None = None
        self._looked_durable = float("-inf")
        self._progress = ProgressLog(attempt, lambda: watch.nodes_of((0,)), steps)
        self._phase = Phase.CHECKING

    def report_again(self) -> None:
        """Report the exits again: the state machine has forgotten them."""
        self._exits = launcher.RanksExited(0.0, 0, ())

    @property
    def stepping(self) -> bool:
        """Whether heartbeats show a step of the present launch."""
        state, launch = self._state(), self._watch.launch
        return launch == state.launch.number and state.phase is Phase.TRAINING and self._watch.step(launch) >= 0

    def step_events(self, now: float, step: TrainingStep | TrainingSteps) -> Iterator[Event]:
        """Report whether the tasks of the training step have appeared, and how they ended."""
        code = step.code  # before the exits, so that all records written until srun ended are read
        launch = self._state().launch.number
        if step.waits:
            yield launcher.SlurmAway(now, launch, step.waits)
        if not self._state().launch.tasks_seen and self._has_appeared(launch):
            yield launcher.TasksSeen(now, launch)
        state = self._state()
        if state.launch.standby and state.progress.step < 0 and step.from_scratch:
            yield launcher.StandbyTook(now, launch, took=False)
        try:
            seen = launcher.RanksExited(0.0, launch, step.exits(), code is not None, code)
        except OSError:
            return  # the run directory does not answer: try again next time
        if seen != self._exits:
            self._exits = seen
            if seen.over or seen.exits:
                self._progress.settle()
            yield replace(seen, at=now)

    def heartbeat_events(self, now: float) -> Iterator[Event]:
        """Report what the heartbeat tables show, which were just read."""
        watch = self._watch
        launch = watch.launch  # right after a relaunch, the tables are still about the launch before
        self._write_progress(launch)
        yield launcher.Stepped(now, launch, watch.step(launch), watch.since_start(launch))
        if self._state().launch.awaited or self._state().launch.absent:
            rows = [row for table in watch.tables.values() for row in table.ranks if row.launch == launch]
            stepped = tuple(row.rank for row in rows if row.step >= 0)
            yield launcher.RanksEntered(now, launch, tuple(row.rank for row in rows), stepped)
        for node, silent_for in watch.alone(now):
            if self._dead(node):
                yield launcher.NodeUnreachable(now, node, silent_for, watch.unusual)
        found = watch.found
        if found is not None and self._state().phase is Phase.TRAINING and not watch.blind(now):
            yield from self._durable(now, at_once=found is not self._found)
            self._found = found
            self._progress.settle()
            overdue = tuple(node for node in watch.overdue(now) if node in self._state().nodes.training)
            yield launcher.Stalled(now, launch, replace(found, overdue=overdue))
        yield from self._durable(now, at_once=self._state().departure.reason is not Reason.NONE)

    def _write_progress(self, launch: int) -> None:
        """Record the progress, also of a launch that is ended while its ranks step, such as for a fault of a node."""
        step, since_start = self._watch.step(launch), self._watch.since_start(launch)
        self._progress.look(launch, step, time.time(), since_start=since_start)
        phase = self._state().phase
        if phase is not self._phase and phase is not Phase.TRAINING:
            self._progress.settle()
        self._phase = phase

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
        """slurmstepd creates a task's log when it starts the task."""
        if self._watch.launch == launch:
            return True
        return bool(listed(self._attempt.logs(launch)))


class BlindNodes:
    """Says which training nodes send no heartbeats, so that nobody takes an unwatched training for a healthy one.

    wrapped: each rank's wrapper makes a record, so a table without ranks shows nothing either.
    """

    def __init__(self, wrapped: bool, journal: JournalWriter) -> None:
        self._wrapped, self._journal = wrapped, journal
        self._since: tuple[int, float] = (-1, 0.0)  # launch, when it was first seen
        self._reported: tuple[str, ...] = ()

    def look(self, state: State, tables: Iterable[NodeTable], now: float) -> None:
        """Journal and print the nodes of a launch that send nothing, each time that they change."""
        launch = state.launch.number if state.phase is Phase.TRAINING and state.launch.started else -1
        if launch < 0 or launch != self._since[0]:
            self._since = (launch, now)
            return
        if now - self._since[1] < UNSEEN:
            return
        seen = {t.node for t in tables if not self._wrapped or any(r.launch == launch for r in t.ranks)}
        blind = tuple(node for node in state.nodes.training if node not in seen)
        if blind == self._reported:
            return
        self._reported = blind
        words = (
            f"no heartbeats from {some(blind)}: a hang there is not detected" if blind else "heartbeats from all nodes"
        )
        self._journal("blind", nodes=blind, words=words)
        say(f"transom: {words}" + ("; the agents' log and the ranks' logs say why" if blind else ""))


SOON, EVERY = 2.0, 60.0  # seconds between two lines: as long as the launch has stepped, within these limits


class ProgressLog:
    """The only writer of an attempt's progress.jsonl. `node` returns the nodes of rank 0 of the present launch."""

    def __init__(
        self, attempt: AttemptDir, node: Callable[[], Sequence[str]], steps: Callable[[str], str] | None = None
    ) -> None:
        self._attempt, self._node = attempt, node
        self._steps = steps or (lambda node: attempt.spent(node).read_text(encoding="utf-8"))
        self._launch, self._step, self._wall = -1, -1, 0.0  # the newest step, and when it was first seen
        self._written, self._due = -1, 0.0  # the newest step in the file, and when the next line is due
        self._since_start = False
        self._began = 0.0  # when the launch's first step was seen
        self._failed = False

    def look(self, launch: int, step: int, wall: float, *, since_start: bool = False) -> None:
        """Note the newest step that every rank of `launch` has done (-1: none). wall: seconds since the epoch."""
        if launch != self._launch:
            self.settle()  # for the launch before
            self._launch, self._step, self._written, self._since_start = launch, -1, -1, False
        if self._since_start and not since_start and step >= 0:  # the training's own step is known now
            self._step = self._written = -1
        self._since_start = since_start if step >= 0 else self._since_start
        if step <= self._step:
            return
        self._step, self._wall = step, wall
        if self._written < 0 or wall >= self._due:
            self.settle()

    def settle(self) -> None:
        """Write the newest step, since training ends or is silent."""
        if self._step <= self._written:
            return
        self._began = self._wall if self._written < 0 else self._began
        self._written, self._due = self._step, self._wall + min(EVERY, max(SOON, self._wall - self._began))
        line: dict[str, object] = {"wall": self._wall, "launch": self._launch, "step": self._step}
        if self._since_start:
            line["since_start"] = True
        ranks = self._ranks()
        if seconds := most(ranks):
            line["seconds"] = seconds
        loss = next((rank.loss for rank in sorted(ranks, key=lambda r: r.rank) if rank.loss is not None), None)
        logged = next((rank.logged for rank in ranks if rank.logged), {})
        line |= {**logged, "listens": any(rank.listens for rank in ranks)} if ranks else {}
        if loss is not None and math.isfinite(loss):
            line["loss"] = loss
        try:
            with open_private(self._attempt.progress, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            if not self._failed:
                say(f"transom: cannot write {self._attempt.progress}: {error}")
            self._failed = True

    def _ranks(self) -> list[RankSteps]:
        for node in self._node():
            with contextlib.suppress(OSError, BadStepBreakdown, UnicodeDecodeError):
                report = decode(self._steps(node))
                return [rank for rank in report.ranks if rank.launch == self._launch]
        return []


def most(ranks: Sequence[RankSteps]) -> dict[str, float]:
    """Return per phase the most seconds that any rank has spent in it."""
    found: dict[str, float] = {}
    for rank in ranks:
        for phase, seconds in rank.seconds.items():
            found[phase] = max(found.get(phase, 0.0), seconds)
    return found
