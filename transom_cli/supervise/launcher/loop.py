"""The launcher: owns one attempt, in the batch script. Every decision is made in `core.launcher`."""

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from transom_cli.core import launcher
from transom_cli.core.codec import plain
from transom_cli.core.launcher import Action, Event, History, Launch, Nodes, Phase, State, observing
from transom_cli.errors import BadNodes, TransomError
from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat.local_table import publish
from transom_cli.plural import several
from transom_cli.slurm.port import Connect, Slurm
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor
from transom_cli.supervise.launcher import handoff, history
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.allocation import allocation_from, time_is_up, warning_due
from transom_cli.supervise.launcher.anomalies import AnomalyReporter
from transom_cli.supervise.launcher.executor import Executor
from transom_cli.supervise.launcher.heartbeat_stream import HeartbeatPublisher, HeartbeatStream
from transom_cli.supervise.launcher.job_steps import RECORD, EarlierSteps, clear_agents, earlier_steps, lock
from transom_cli.supervise.launcher.journal import LauncherJournal, say
from transom_cli.supervise.launcher.monitor import BlindNodes, Monitor
from transom_cli.supervise.launcher.node_monitor import FaultMonitor, NodeMonitor, WarmUp
from transom_cli.supervise.launcher.node_release import NodeRelease, release_nodes
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.preflight import NodeChecks
from transom_cli.supervise.launcher.top_up import TopUps
from transom_cli.supervise.launcher.training import TrainingStep, TrainingSteps

TURN = 0.05  # seconds per turn of the loop
EXITS = 0.2  # interval in seconds between reads of the exit records; each turn if survivors wait for the launcher
LOOK = 0.25  # interval in seconds between reads of the heartbeat tables
TABLES = 256  # number of nodes from which that interval is 1 s
SIGN = 1.0  # interval in seconds between signs of life
PROBE = 5.0  # seconds for a spare's agent to answer
SRUN_ABORTS = 1.0  # seconds in which srun, which Slurm signals too, says that it ends the step
KILL_AFTER = 25.0  # seconds from TERM to KILL, within Slurm's own KillWait of 30 s
SRUN_KILLED = 2.0  # seconds more, to write the outcome
SUSPENDED = 2.0  # seconds without a turn before SIGCONT that count as a suspension
_LEAVE = (signal.SIGTERM, signal.SIGINT)


class Launcher:
    """The loop around `core.launcher`: turns observations and signals into events, and carries out actions."""

    def __init__(self, allocation: Allocation, options: LaunchOptions, connect: Connect) -> None:
        self._options, self._connect = options, connect
        self._attempt = options.run.attempt(allocation.job_id, allocation.restart)
        self._earlier = earlier_steps(self._attempt) if options.job_step else EarlierSteps()
        left_out = tuple(n for n in self._earlier.given_up if n in allocation.nodes)
        nodes = tuple(n for n in allocation.nodes if n not in left_out)
        self._allocation = replace(allocation, nodes=nodes, left_out=left_out)
        self._log = LauncherJournal(self._attempt.launcher_journal)
        self._signals: list[int] = []
        self._unheard: list[int] = []  # signals for the next launch, since none runs
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._nodes = NodeMonitor(self._inbox)
        self._stop_by: float | None = None
        self._looked = self._looked_exits = self._signed = float("-inf")
        self._turned = time.monotonic()  # when the loop last turned
        self._continued: float | None = None  # when this process was continued (SIGCONT)
        self._stopped_for = 0.0  # seconds for which Slurm had stopped it
        self._signs = 0
        self._code, self._failed, self._again, self._why = 1, False, "", ""
        self._stream: HeartbeatStream | None = None
        self._look_every = max(LOOK, min(1.0, len(allocation.nodes) / TABLES))

    def run(self) -> int:
        """Run the attempt.

        Returns:
            The batch script's exit code: 0 if done, else that of the rank that died first (128 + n for a signal).
        """
        self._make_attempt_dir()
        if self._options.job_step:
            self._lock = lock(self._attempt)
            clear_agents(self._attempt)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda n, _frame: self._signals.append(n))  # no work inside a handler
        signal.signal(signal.SIGCONT, self._on_continue)
        options, nodes = self._options, self._allocation.nodes
        due = warning_due(os.environ, options.warn_before, time.time(), by_slurm=not options.job_step)
        self._warn_at = float("inf") if due is None else self._now() + due
        policy = options.policy
        if self._earlier.steps:
            policy = replace(policy, preflight=False)
        fixed = options.job_step or options.min_nodes  # a smaller job than wanted gets further nodes
        wanted = options.nodes if fixed else min(options.nodes or len(nodes), len(nodes))
        roles = Nodes(nodes, wanted, options.min_nodes, options.shrink_unit, batch_host=self._allocation.host)
        self._state = State(
            self._allocation.job_id,
            self._allocation.restart,
            roles,
            options.tasks_on_node,
            policy,
            job_step=options.job_step,
            first=self._earlier.launches,
            launch=Launch(self._earlier.launches - 1),
            history=History(numbered=self._earlier.incidents),
        )
        self._undecided = self._state
        about = {"job_step": options.job_step} if options.job_step else {}
        self._journal("attempt", nodes=nodes, host=socket.gethostname(), pid=os.getpid(), **about)
        self._watch = HeartbeatMonitor(self._attempt.nodes, options.limits)
        self._agents = Agents(
            self._allocation, options, self._attempt, self._journal, self._connect, self._asked_to_leave
        )
        self._executor = Executor(self._allocation, options, self._attempt, self._agents, self._inbox, self._journal)
        self._top_ups = TopUps(self._allocation, options, self._attempt, self._agents, self._connect, self._inbox)
        self._executor.before_verdict = self._top_ups.look
        self._checks = NodeChecks(self._allocation, options, self._attempt, self._inbox, self._agents.addresses)
        self._faults = FaultMonitor(self._inbox, lambda node: self._agents.ask(node, "faults", PROBE))
        self._release = NodeRelease(self._allocation, self._slurm, self._journal)
        self._blind = BlindNodes(options.kind == "srun", self._journal)
        self._monitor = Monitor(
            options, self._attempt, self._watch, lambda: self._state, self._agents.dead, self._read_steps
        )
        self._reporter = AnomalyReporter(
            self._attempt, options.checkpoints, self._journal, self._inbox.put, self._read_steps,
            history.earlier(options.run, self._attempt),
        )  # fmt: skip
        self._publisher = HeartbeatPublisher(self._attempt, self._watch)
        with_agents = self._start_agents()
        self._stream = self._agents.fetch_heartbeats() if with_agents else None
        if self._stream is not None:
            self._watch.attach(self._stream)
        self._reporter.start()
        if not options.observe:
            job = (self._slurm(), options.run, self._allocation)
            threading.Thread(target=handoff.clear_hold, args=job, daemon=True).start()
        try:
            begun = history.begun(options, self._attempt, self._earlier.taken)
            ends_at = time_is_up(self._allocation.job_id) if options.min_nodes else None
            if ends_at is not None:
                ends_at += self._now() - time.time()
            self._handle(replace(begun, at=self._now(), memory=with_agents, ends_at=ends_at))
            if options.min_nodes:
                self._top_ups.follow_queue()
            heard: Event | None = None
            while self._state.phase is not Phase.OVER:
                self._resume()
                self._observe(self._now(), heard)
                heard = self._wait()
            if options.observe:
                pass  # the job is not ours to requeue or to shrink
            elif self._state.stop:  # Slurm waits for this process
                self._requeue_unless_cancelled()
            elif self._failed or self._again:
                self._hand_over()
            elif not options.job_step:  # else the user's script may still use them
                self._release_idle_nodes()
        finally:
            self._nodes.stop()
            self._reporter.stop()
            self._executor.orphans.stop()
            self._release.stop()
            self._top_ups.stop()
            self._agents.stop(at_once=bool(self._state.stop) or self._asked_to_leave())
        return self._code

    def _hand_over(self) -> None:
        """Hand the job to the operator, or else to Slurm; then Slurm removes the rest of the training step."""
        run, leave = self._options.run, self._asked_to_leave
        if handoff.await_operator(run, leave) and self._again:
            self._journal("requeue", how=self._again)
            wanted = handoff.NextAttempt(self._again, self._why, self._options.resubmit)
            handoff.hand_off(self._slurm(), run, self._allocation, wanted, leave, self._journal)
        if self._step is not None:
            self._step.kill()

    def _requeue_unless_cancelled(self) -> None:
        """Requeue a job that Slurm ended for its time limit or preempted: Slurm does not restart it."""
        run = self._options.run
        if not self._again or history.operator_lives(run, self._attempt):
            return
        if handoff.ended_by_slurm(self._connect(10.0), self._allocation.job_id):
            self._journal("requeue", how="requeue")
            wanted = handoff.NextAttempt("requeue", self._why, self._options.resubmit)
            handoff.hand_off(self._slurm(), run, self._allocation, wanted, lambda: True, self._journal)

    def _release_idle_nodes(self) -> None:
        state, overdue = self._state, self._watch.overdue(self._now())
        kept = self._release.kept()
        idle = (n for n in kept if n not in state.nodes.training)
        gone = tuple(n for n in idle if n not in state.nodes.ready or n in overdue)
        if gone and state.nodes.training:
            release_nodes(self._slurm(), replace(self._allocation, nodes=kept), gone)

    def _slurm(self) -> Slurm:
        return self._connect(30.0)

    def _asked_to_leave(self) -> bool:
        return any(n in _LEAVE for n in self._signals)

    @property
    def _step(self) -> TrainingStep | TrainingSteps | None:
        return self._executor.step

    def _make_attempt_dir(self) -> None:
        try:
            for path in (self._attempt.path, self._attempt.nodes):
                make_private(path)
            with contextlib.suppress(OSError):  # without it, others could take the names of heartbeat directories
                if not self._attempt.beats_suffix.exists():
                    publish_text(self._attempt.beats_suffix, secrets.token_hex(8), private=True)
            with contextlib.suppress(OSError):  # the save reports why it cannot be created
                make_private(self._options.checkpoints)
        except OSError as error:
            path = self._options.run.path
            raise BadNodes(
                f"Cannot write in the run directory `{path}`",
                str(error),
                f"on this node: `df -h {path}`, `ls -ld {path}`",
            ) from error

    def _start_agents(self) -> bool:
        """Start the agents. Without them the training runs, but the launcher cannot relaunch it."""
        try:
            self._agents.start()
        except (OSError, TransomError) as error:
            self._journal("agents", error=str(error))
            say(f"transom: no agents: {error}")
            return False
        if self._allocation.unwatched and self._options.health.watch:
            self._journal("agents", words=self._allocation.unwatched)
            say(f"transom: {self._allocation.unwatched}")
        return True

    def _watch_nodes(self) -> None:
        nodes = self._allocation.nodes if self._options.leave_drained else ()

        def probe(node: str) -> dict[str, object]:
            given_back = node in self._release.returned or node not in self._allocation.every_node
            return {"error": "given back"} if given_back else self._agents.ask(node, "probe", PROBE)

        warm_up = WarmUp(self._agents, self._journal, lambda: self._state)
        spares = self._state.nodes.spares
        self._nodes.start(nodes, spares, probe, self._slurm, warm_up, lambda: self._state.nodes.silent, self._answers)

    def _answers(self, node: str) -> bool:
        """Whether a node that was silent is back. Its agent may have died with it."""
        if node in self._release.returned or self._executor.orphans.on(node):
            return False
        self._agents.revive_returned(node)
        return bool(self._agents.ask(node, "probe", PROBE).get("ok"))

    # --- time ---

    def _now(self) -> float:
        """A monotonic clock that excludes the time for which this process was stopped, so that no limit expires."""
        return time.monotonic() - self._stopped_for

    def _on_continue(self, _number: int, _frame: object) -> None:
        self._continued = time.monotonic()

    def _resume(self) -> None:
        """Restart the watch after a suspension, in which Slurm also stopped agents and ranks."""
        continued, self._continued = self._continued, None
        stopped_for = continued - self._turned if continued is not None else 0.0
        self._turned = time.monotonic()
        if stopped_for < SUSPENDED:
            return
        self._stopped_for += stopped_for
        self._watch.resumed(self._now())
        self._agents.resumed()
        self._journal("continued", seconds=round(stopped_for, 1))

    # --- observing ---

    def _wait(self) -> Event | None:
        """Until the next turn is due, or an event has come."""
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=TURN)
        return None

    def _observe(self, now: float, heard: Event | None) -> None:
        self._sign(now)
        self._forward(now)
        with contextlib.suppress(queue.Empty):
            while True:
                self._handle(replace(heard or self._inbox.get_nowait(), at=now))
                heard = None
        watched = self._state.phase is Phase.TRAINING or launcher.reading(self._state)
        often = 0.0 if self._options.policy.recoverable else EXITS
        if self._step is not None and watched and now - self._looked_exits >= often:
            self._looked_exits = now
            for event in self._monitor.step_events(now, self._step):
                self._handle(event)
        if now - self._looked >= self._look_every:
            self._looked = now
            self._look_at_beats(now)
        due = launcher.next_deadline(self._state)
        if due is not None and now >= due:
            self._handle(launcher.Tick(now))

    def _handle(self, event: Event) -> None:
        if isinstance(event, launcher.SpareChecked):
            self._journal("spare", node=event.node, good=event.good, words=event.words)
        if observing.undecided(self._state):
            self._undecided = self._state
        self._state, actions = launcher.decide(self._state, event)
        for action in actions:
            self._do(action)
            self._sign(self._now())  # many journal entries take time on a slow file system

    def _sign(self, now: float) -> None:
        """Write a sign of life. If the disk is full, the operator sees this launcher as silent, and ranks train on."""
        if now - self._signed < SIGN:
            return
        self._signed, self._signs = now, self._signs + 1
        with contextlib.suppress(OSError):
            publish(self._attempt.launcher_alive, f"{self._signs}\n".encode())

    def _forward(self, now: float) -> None:
        if now >= self._warn_at:
            self._warn_at = float("inf")
            self._signals += [] if self._state.warned else [signal.SIGUSR2]
        while self._signals:
            number = self._signals.pop(0)
            self._journal("signal", name=signal.Signals(number).name)
            if number == signal.SIGUSR2:
                self._handle(launcher.TimeLimitNear(now))
            outside = number == signal.SIGTERM and self._from_outside()
            if self._state.phase is not Phase.TRAINING and number not in _LEAVE:
                self._unheard.append(number)  # for the next launch
            elif self._step is not None and outside:
                self._step.hold()
            elif self._step is not None:
                self._step.signal(number)
            if number in _LEAVE:
                self._stop_by = self._stop_by or now + KILL_AFTER
                self._handle(launcher.StopRequested(now, signal.Signals(number).name, outside))
        if self._stop_by is not None and now > self._stop_by:
            if self._step is not None:
                self._step.kill()
            if now > self._stop_by + SRUN_KILLED:
                self._handle(launcher.GracePeriodOver(now))

    def _from_outside(self) -> bool:
        """Whether Slurm did not send SIGTERM. Then srun must not get it either: it would kill all ranks at once."""
        step = self._step
        trains = step is not None and step.code is None and self._state.phase is Phase.TRAINING
        return trains and not self._options.observe and step is not None and not step.aborted(SRUN_ABORTS)

    def _read_steps(self, node: str) -> str:
        """The node's step breakdowns as text: as its agent sent them, or from its file. Raises OSError."""
        sent = self._stream.steps(node) if self._stream is not None else ""
        return sent or self._attempt.spent(node).read_text(encoding="utf-8")

    def _look_at_beats(self, now: float) -> None:
        findings = self._watch.look(now)
        if self._publisher.look(now, findings) and self._stream is not None:
            self._stream.consumed()
        self._faults.look(self._watch.tables, now)
        self._blind.look(self._state, self._watch.tables.values(), now)
        late = tuple(n for n in self._watch.overdue(now) if n not in self._release.returned)
        if late and not self._state.stop:
            self._agents.revive(late)
        if self._monitor.stepping and self._step is not None:
            while self._unheard:
                self._step.signal(self._unheard.pop(0))
        for event in self._monitor.heartbeat_events(now):
            self._handle(event)
        if self._monitor.stepping and not self._options.observe:
            self._release.look(self._state, self._executor.orphans.on)
            self._executor.keep_standby(self._state, now)

    # --- acting ---

    def _do(self, action: Action) -> None:
        if self._options.observe and self._withheld(action):
            return
        if isinstance(action, launcher.StartLaunch):
            self._start(action)
        elif isinstance(action, launcher.RollBack):
            self._executor.roll_back(action)
        elif isinstance(action, launcher.CheckNodes):
            self._checks.check(action)
        elif isinstance(action, launcher.RequestCheckpoint):
            self._executor.request_checkpoint(action, self._watch.overdue(self._now()), self._watch.step_time)
        elif isinstance(action, launcher.PersistMemory):
            self._executor.persist_memory(action)
        elif isinstance(action, launcher.EndLaunch):
            self._executor.end(action)
        elif isinstance(action, launcher.ReadLogs):
            self._executor.read_logs(action)
        elif isinstance(action, launcher.JudgeHang):
            self._executor.judge(action)
        elif isinstance(action, launcher.KillRanks):
            self._executor.kill(action)
        elif isinstance(action, launcher.ReplaceRanks):
            self._executor.replace(action)
        elif isinstance(action, launcher.WatchSpares):
            self._nodes.watch(action.nodes)
        elif isinstance(action, launcher.SubmitTopUp):
            self._top_ups.submit(action)
        elif isinstance(action, launcher.CancelTopUp):
            self._journal("top-up", job_id=action.job_id, words=f"cancelled: {action.why}")
            self._top_ups.cancel(action.job_id)
        elif isinstance(action, launcher.Journal):
            self._journal("recovery", **vars(action))
            would = "would have " if action.what == "withheld" else ""
            say(f"transom: {f'{action.incident} {action.what}'.strip()}: {would}{action.words}")
        elif isinstance(action, launcher.WithheldOutcome):
            self._journal("withheld", outcome=action.outcome)
            say(f"transom: only observed, would have ended the attempt: {action.outcome.why}")
        else:
            self._leave(action)

    def _withheld(self, action: Action) -> bool:
        """Whether something else was done instead of an action, since the run is only observed."""
        step, now = self._step, self._now()
        lives = step is not None and step.code is None
        with contextlib.suppress(OSError):  # srun ends a moment after its last task
            lives = lives and step is not None and len(step.exits()) < self._state.tasks
        if isinstance(action, launcher.EndLaunch):
            self._executor.observe(action, self._watch.overdue(now))
            return True
        if isinstance(action, launcher.PersistMemory) and lives:
            self._inbox.put(launcher.MemoryPersisted(0.0, action.launch, -1, ""))
            return True
        launch, watch = self._undecided.launch.number, self._watch
        newest = launcher.Stepped(now, launch, watch.step(launch), watch.since_start(launch))
        begun = step is not None
        instead = observing.withhold(self._undecided, self._state, action, newest, begun=begun, lives=lives)
        if instead is None:
            return False
        self._state, actions = instead
        self._monitor.report_again()
        for one in actions:
            self._do(one)
        return True

    def _start(self, action: launcher.StartLaunch) -> None:
        if not self._nodes.started:  # the spares are known only now
            self._watch_nodes()
        world = self._options.tasks_per_node * len(action.nodes)
        where = f"{several(world, 'rank')} on {several(len(action.nodes), 'node')}"
        logs = self._attempt.logs(action.launch)  # before srun prints anything (see `batchlog.of_attempt`)
        say(f"transom: launch {action.launch} of attempt {self._attempt.name}: {where}, logs in {logs}")
        argv = self._executor.start(action)
        if argv is None:
            return
        idle = tuple(n for n in self._allocation.every_node if n not in action.nodes)
        step = self._options.job_step
        about: dict[str, Any] = {"lost": list(action.lost)} if action.lost else {}
        about |= {"job_step": step, "checkpoints": str(self._options.checkpoints)} if step else {}
        faults = action.faults
        self._journal("launch", nodes=action.nodes, idle=idle, world_size=world, argv=argv, faults=faults, **about)

    def _leave(self, action: launcher.FinishAttempt) -> None:
        """Write outcome.json last, so that its reader finds the attempt directory complete."""
        self._executor.drop_standby()
        outcome = action.outcome
        self._code, self._failed, self._again = action.exit_code, outcome.status == "failed", action.again
        self._why = outcome.why
        step, about = outcome.job_step, {}
        if step:
            given_up = (*self._allocation.left_out, *self._state.nodes.given_up)
            about = {"job_step": step, "given_up": given_up, "taken": outcome.taken}
        step_done = bool(step) and outcome.status == "done"  # the attempt continues with the user's script
        kind = RECORD if step_done else "outcome"
        self._journal(kind, status=outcome.status, why=outcome.why, exit_code=action.exit_code, **about)
        if not step_done:
            self._publish_outcome(json.dumps(plain(outcome)) + "\n")
        if self._stream is not None:
            self._stream.announce_end()
        say(f"transom: {f'job step {step}: ' if step else ''}{outcome.status}: {outcome.why}")

    def _publish_outcome(self, text: str) -> None:
        try:
            publish_text(self._attempt.outcome, text)
        except OSError as error:
            say(f"transom: cannot write {self._attempt.outcome}: {error}")
            threading.Thread(target=self._publish_again, args=(text,), name="outcome", daemon=True).start()

    def _publish_again(self, text: str) -> None:
        """Try again until the disk has space. If it never has, Slurm's own account of the job must suffice."""
        while True:
            time.sleep(SIGN)
            with contextlib.suppress(OSError):
                publish_text(self._attempt.outcome, text)
                return

    def _journal(self, kind: str, **fields: Any) -> None:
        self._log.write(kind, self._state.launch.number, **fields)


def main(options: LaunchOptions, connect: Connect) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return Launcher(allocation_from(os.environ), options, connect).run()
