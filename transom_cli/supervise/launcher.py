"""The launcher: owns one attempt, in the batch script. All judgement is in `core.ladder`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.core import ladder, quiet
from transom_cli.core.codec import plain
from transom_cli.core.ladder_shapes import (
    Appeared,
    Begun,
    Durable,
    End,
    Ended,
    Exits,
    Heard,
    LadderPolicy,
    LadderState,
    Leave,
    NotStarted,
    Order,
    Overtime,
    Quiet,
    Read,
    ReadLogs,
    Rung,
    Start,
    Stepped,
    Tell,
    Tick,
    Told,
)
from transom_cli.errors import BadNodes, TransomError
from transom_cli.files import publish_text, replace_text
from transom_cli.supervise import launchplan
from transom_cli.supervise.agents import Agents
from transom_cli.supervise.allocation import allocation_from
from transom_cli.supervise.beatwatch import BeatWatch
from transom_cli.supervise.examine import examine
from transom_cli.supervise.follow import newest_checkpoint
from transom_cli.supervise.launcherlog import LauncherLog, say
from transom_cli.supervise.launchplan import Allocation, LaunchOptions
from transom_cli.supervise.linger import linger
from transom_cli.supervise.training import TrainingStep

TURN = 0.05
EXITS = 0.2  # seconds between two looks at the ranks' exit records
LOOK = 0.25  # seconds between two looks at the beats
TABLES = 256  # from as many nodes on, a look a second
SIGN = 1.0  # seconds between two signs of life
KILL_AFTER = 25.0  # seconds from TERM to KILL, within Slurm's own KillWait of 30
SRUN_KILLED = 2.0  # more, to say how the attempt ended
SRUN_END = 10.0  # seconds for srun to see that all its tasks have ended
_LEAVE = (signal.SIGTERM, signal.SIGINT)
WRAPPER = Path(__file__).resolve().parents[1] / "agent" / "rank.py"


class Launcher:
    """The loop around `core.ladder`: hears the ranks, the beats, Slurm's signals; does what is ordered."""

    def __init__(self, allocation: Allocation, options: LaunchOptions) -> None:
        self._allocation = allocation
        self._options = options
        self._attempt = options.run.attempt(allocation.job_id, allocation.restart)
        self._log = LauncherLog(self._attempt.launcher_journal)
        self._signals: list[int] = []
        self._unheard: list[int] = []  # signals that came while no launch could hear them
        self._inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._step: TrainingStep | None = None
        self._told = Exits(0.0, 0, ())
        self._found: quiet.RanksQuiet | None = None
        self._stop_by: float | None = None
        self._looked = self._looked_exits = self._looked_durable = self._signed = float("-inf")
        self._signs = 0
        self._code, self._failed = 1, False
        self._look_every = max(LOOK, min(1.0, len(allocation.nodes) / TABLES))

    def run(self) -> int:
        """The batch script's exit code: 0 done, else that of the rank that died first (128 + n for a signal)."""
        self._make_attempt_dir()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda n, _frame: self._signals.append(n))  # no work inside a handler
        tasks = self._options.tasks_on_node * len(self._allocation.nodes)
        policy = LadderPolicy(relaunches=self._options.relaunches)
        where = (self._allocation.job_id, self._allocation.restart, self._allocation.nodes)
        self._state = LadderState(*where, tasks, policy)
        self._journal("attempt", nodes=self._allocation.nodes, host=socket.gethostname(), pid=os.getpid())
        self._watch = BeatWatch(self._attempt.nodes, self._options.limits)
        self._agents = Agents(self._allocation, self._options, self._attempt)
        self._start_agents()
        try:
            self._hear(Begun(time.monotonic(), newest_checkpoint(self._options.checkpoints)))
            while self._state.rung is not Rung.LEFT:
                self._observe(time.monotonic())
                time.sleep(TURN)
            if self._failed and not self._state.told:
                linger(self._options.run, lambda: any(n in _LEAVE for n in self._signals))
                if self._step is not None:
                    self._step.kill()  # Slurm removes what is left of it
        finally:
            self._agents.stop(at_once=bool(self._state.told) or any(n in _LEAVE for n in self._signals))
        return self._code

    def _make_attempt_dir(self) -> None:
        try:
            for path in (self._attempt.path, self._attempt.nodes):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadNodes(f"Cannot write in the run directory `{self._options.run.path}`", str(error)) from error

    def _start_agents(self) -> None:
        """Without them the training runs all the same: its faults are then handed up, not handled here."""
        try:
            self._agents.start()
        except (OSError, TransomError) as error:
            self._journal("agents", error=str(error))
            say(f"transom: no agents: {error}")

    # --- hearing ---

    def _observe(self, now: float) -> None:
        self._sign(now)
        self._forward(now)
        while True:
            try:
                self._hear(replace(self._inbox.get_nowait(), at=now))
            except queue.Empty:
                break
        if self._step is not None and self._state.rung is Rung.TRAINING and now - self._looked_exits >= EXITS:
            self._looked_exits = now
            self._look_at_step(now, self._step)
        if now - self._looked >= self._look_every:
            self._looked = now
            self._look_at_beats(now)
        self._hear(Tick(now))

    def _hear(self, heard: Heard) -> None:
        self._state, orders = ladder.decide(self._state, heard)
        for order in orders:
            self._do(order)
            self._sign(time.monotonic())  # a story of many lines takes its time on a slow file system

    def _sign(self, now: float) -> None:
        """A full disk is no reason to leave the ranks alone: then the operator sees this launcher as silent."""
        if now - self._signed < SIGN:
            return
        self._signed, self._signs = now, self._signs + 1
        with contextlib.suppress(OSError):
            replace_text(self._attempt.launcher_alive, f"{self._signs}\n")

    def _forward(self, now: float) -> None:
        while self._signals:
            number = self._signals.pop(0)
            self._journal("signal", name=signal.Signals(number).name)
            if self._state.rung is not Rung.TRAINING and number not in _LEAVE:
                self._unheard.append(number)  # a warning of the time limit, most likely: for the launch to come
            elif self._step is not None:
                self._step.signal(number)
            if number in _LEAVE:
                self._stop_by = self._stop_by or now + KILL_AFTER
                self._hear(Told(now, signal.Signals(number).name))
        if self._stop_by is not None and now > self._stop_by:
            if self._step is not None:
                self._step.kill()
            if now > self._stop_by + SRUN_KILLED:
                self._hear(Overtime(now))

    def _look_at_step(self, now: float, step: TrainingStep) -> None:
        code = step.code  # before the exits: what was written until srun ended is read
        launch = self._state.launch
        if not self._state.appeared and self._has_appeared(launch):
            self._hear(Appeared(now, launch))
        try:
            told = Exits(0.0, launch, step.exits(), code is not None, code)
        except OSError:
            return  # the run directory does not answer: seen at the next look
        if told != self._told:
            self._told = told
            self._hear(replace(told, at=now))

    def _has_appeared(self, launch: int) -> bool:
        """slurmstepd makes a task's log when it starts the task."""
        if self._watch.launch == launch:
            return True
        try:
            return any(True for _ in self._attempt.logs(launch).iterdir())
        except OSError:
            return False

    def _look_at_beats(self, now: float) -> None:
        self._watch.look(now)
        launch = self._watch.launch  # after a relaunch the tables are about the launch before it for a moment
        step = self._watch.step(launch)
        if step >= 0 and launch == self._state.launch and self._step is not None:
            while self._unheard:
                self._step.signal(self._unheard.pop(0))
        self._hear(Stepped(now, launch, step))
        found = self._watch.found
        if found is not None and self._state.rung is Rung.TRAINING and not self._watch.blind(now):
            nodes = self._watch.nodes_of(found.culprits)
            self._durable(now, at_once=found is not self._found)
            self._found = found
            self._hear(Quiet(now, launch, found.step, found.quiet_for, found.limit, tuple(found.culprits), nodes))
        self._durable(now)

    def _durable(self, now: float, *, at_once: bool = False) -> None:
        if at_once or now - self._looked_durable >= 1.0:
            self._looked_durable = now
            with contextlib.suppress(OSError):
                self._hear(Durable(now, newest_checkpoint(self._options.checkpoints)))

    # --- doing ---

    def _do(self, order: Order) -> None:
        if isinstance(order, Start):
            try:
                self._start(order.launch)
            except (OSError, TransomError) as error:
                self._inbox.put(NotStarted(0.0, order.launch, f"launch {order.launch} cannot be started: {error}"))
        elif isinstance(order, End):
            threading.Thread(target=self._end, args=(order, self._step), name="end", daemon=True).start()
        elif isinstance(order, ReadLogs):
            threading.Thread(target=self._read, args=(order,), name="read", daemon=True).start()
        elif isinstance(order, Tell):
            self._journal("heal", **vars(order))
            say(f"transom: {order.incident} {order.what}: {order.words}")
        else:
            self._leave(order)

    def _start(self, launch: int) -> None:
        allocation, options, attempt = self._allocation, self._options, self._attempt
        for path in (attempt.logs(launch), attempt.exits(launch)):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        master = self._agents.addresses[allocation.nodes[0]]
        port = launchplan.port_for(allocation, launch)
        env = launchplan.training_env(os.environ, master, port, options.run)
        argv = launchplan.training_argv(allocation, options, attempt, launch, wrapper=WRAPPER, master=master, port=port)
        self._step = TrainingStep(argv, env, attempt.exits(launch), allocation.nodes, self._state.tasks)
        world = options.tasks_per_node * len(allocation.nodes)
        self._journal("launch", nodes=allocation.nodes, world_size=world, argv=argv)
        where = f"{world} ranks on {len(allocation.nodes)} nodes, logs in {attempt.logs(launch)}"
        say(f"transom: launch {launch} of attempt {attempt.name}: {where}")

    def _end(self, order: End, step: TrainingStep | None) -> None:
        """In a thread of its own: dead nodes and slow ones must not keep the loop from hearing Slurm's signals."""
        try:
            lines = self._agents.evidence(order.launch, order.incident) if order.evidence else ()
            ended = replace(self._agents.end(order.launch), evidence=lines)
            if step is not None and not ended.unheard and not step.wait(SRUN_END):
                step.kill()
                lives = (socket.gethostname(), f"srun of launch {order.launch}")
                ended = replace(ended, survivors=(*ended.survivors, lives))
            ended = replace(ended, exits=step.exits() if step is not None else ())
        except Exception as error:  # a fault of ours must not leave the attempt waiting for ever
            ended = Ended(0.0, order.launch, survivors=((socket.gethostname(), repr(error)),))
        self._inbox.put(ended)

    def _read(self, order: ReadLogs) -> None:
        try:
            found = examine("", self._options.run, self._attempt, order.rank, 0.0)
            self._inbox.put(Read(0.0, order.launch, found.category, found.line, found.where))
        except Exception as error:
            self._inbox.put(Read(0.0, order.launch, "unknown", repr(error), "the logs could not be read"))

    def _leave(self, order: Leave) -> None:
        """outcome.json is written last: whoever reads it may believe the rest of the attempt directory."""
        told = order.outcome
        self._code, self._failed = order.exit_code, told.status == "failed"
        self._journal("outcome", status=told.status, why=told.why, exit_code=order.exit_code)
        try:
            publish_text(self._attempt.outcome, json.dumps(plain(told)) + "\n")
        except OSError as error:  # Slurm's own account of the job must do
            say(f"transom: cannot write {self._attempt.outcome}: {error}")
        say(f"transom: {told.status}: {told.why}")

    def _journal(self, kind: str, **fields: Any) -> None:
        self._log.write(kind, self._state.launch, **fields)


def main(options: LaunchOptions) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return Launcher(allocation_from(os.environ), options).run()
