"""The operator's loop: observe, record, decide, act. `core` decides; the executor acts.

It survives `kill -9` at any moment. The next operator replays the journal through the core, and repeats every action
that has no recorded answer.
"""

import contextlib
import logging
import queue
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from transom_cli.core import events as ev
from transom_cli.core.codec import event_to_json, plain
from transom_cli.core.operator.actions import Action, Restart, Submit
from transom_cli.core.operator.cadence import FAST, Cadence, Pause, changes
from transom_cli.core.operator.decide import next_deadline
from transom_cli.core.operator.isolation import drained_and_awaited
from transom_cli.core.operator.state import State
from transom_cli.layout import RunDir
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.journal import Journal, JournalError, fold, step_and_remember
from transom_cli.supervise.journal_snapshot import SnapshotWriter
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor
from transom_cli.supervise.operator.run_files import RunFiles
from transom_cli.supervise.operator.slurm_poller import SlurmPoller
from transom_cli.supervise.run_summary import SummaryWriter

log = logging.getLogger("transom.operator")

TURN = 0.1  # seconds between two turns of the loop while something changes
TRAINING = 0.25  # while the ranks train, and heartbeats are read
WAITING = 2.0  # while the job waits in the queue
TICK = 1.0  # seconds between two ticks at most: observers judge by time, too
SLOW_TICK = 10.0  # while the job waits in the queue
FINISH = 30.0  # seconds that a requeue under way may hold up an operator that was asked to leave
FULL = 2.0  # seconds between two tries to write the journal on a disk that is full


class Pace:
    """When to ask Slurm about the job: `core.operator.cadence` decides, and this keeps what it needs."""

    def __init__(
        self,
        cadence: Cadence,
        clock: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = random.random,
        rest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """rest: seconds until the next list of the user's jobs that is not urgent."""
        self._cadence, self._clock, self._spread, self._until_next_list = cadence, clock, spread, rest
        self._state = State()
        self._changes: tuple[object, ...] = ()
        self._lives = self._lived = False  # the launcher of the present start, now and before
        self._changed = clock()

    def notice(self, state: State, *, launcher_lives: bool) -> bool:
        """Return whether something changed: then the next question waits only for `delay`."""
        known, lived = self._changes, self._lived and state.job.state != "PENDING"
        began = launcher_lives and not self._lives  # the job has started: one question tells on which nodes
        silent = self._lives and lived and not launcher_lives
        self._state, self._changes = state, changes(state)
        self._lives, self._lived = launcher_lives, launcher_lives or lived
        if self._changes == known and not silent:
            return began
        self._changed = self._clock()
        return True

    @property
    def delay(self) -> float:
        """Seconds from a change to the question about it."""
        silent = self._lived and not self._lives
        rest = self._until_next_list()
        return self._cadence.delay(self._state, silent=silent, spread=self._spread(), rest=rest)

    @property
    def calm(self) -> bool:
        """Whether nothing has changed for a while."""
        return self._clock() - self._changed >= FAST

    def __call__(self, took: float) -> Pause:
        since = self._clock() - self._changed
        lives, spread, silent = self._lives, self._spread(), self._lived and not self._lives
        rest = self._until_next_list()
        return self._cadence.pause(
            self._state, since=since, launcher_lives=lives, took=took, spread=spread, silent=silent, rest=rest
        )


class Observer(Protocol):
    """Follows the run. Its methods must return at once and never raise."""

    def seen(self, before: State, event: ev.Event, after: State) -> None:
        """Called for each event of the run in order, beginning with those in the journal."""

    def close(self) -> None:
        """The operator leaves, or the run is over."""


class Operator:
    def __init__(
        self,
        run: RunDir,
        lease: Lease,
        clock_from: Callable[[float], Clock],
        parts: Callable[[Clock, queue.SimpleQueue[ev.Event], Pace], tuple[Follower, SlurmPoller, Executor]],
        pace: Pace,
        observers: Sequence[Observer] = (),
    ) -> None:
        folded = fold(run.journal)
        self.state = folded.state
        self.run_dir = run
        self._lease = lease
        self._journal = Journal(run.journal, lease.epoch)
        self._files = RunFiles(run, lease.epoch)
        self._clock = clock_from(folded.last_at)
        self._inbox: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self._pace = pace
        self._observers = (*observers, SummaryWriter(run))
        self._follower, self._watch, self._executor = parts(self._clock, self._inbox, pace)
        self._asked_to_leave = False
        self._leave_by = 0.0
        self._turn = TURN

    def now(self) -> float:
        """The run's clock, for the time of an event."""
        return self._clock.now()

    def post(self, event: ev.Event) -> None:
        """Put an event in the inbox, and wake the loop. Any thread may call this."""
        self._inbox.put(event)

    def leave(self) -> None:
        """Stop operating without touching the job; another operator can continue from the journal."""
        self._asked_to_leave = True
        self.post(ev.Tick(self.now()))

    def _may_leave(self) -> bool:
        """Return whether to leave now. A requeue in progress is finished first, within FINISH seconds."""
        if not self._asked_to_leave:
            return False
        self._leave_by = self._leave_by or time.monotonic() + FINISH
        return not self._executor.in_restart or time.monotonic() >= self._leave_by

    def run(self) -> State:
        """Work until the run is over, a newer operator has taken it, or `leave` was called."""
        try:
            self._begin()
            self._watch.start()
            ticked = self._clock.now()
            while not self.state.phase.over and not self._may_leave():
                if self._lease.fenced():
                    log.warning("a newer operator has taken this run; leaving")
                    return self.state
                self._renew()
                self._keep_files()
                self._observe()
                now, due = self._clock.now(), next_deadline(self.state)
                if now - ticked >= (SLOW_TICK if self._turn >= WAITING else TICK) or (due is not None and due <= now):
                    ticked = now
                    self._apply(ev.Tick(now))
                job = self.state.job
                self._watch.follow(job.id, job.restarts, job.nodes, drained_and_awaited(self.state))
                if self._pace.notice(self.state, launcher_lives=self._follower.launcher_lives):
                    self._watch.look(self._pace.delay)
                self._rest()
        finally:
            self._watch.stop()
            self._executor.stop()
            self._journal.close()
            for observer in self._observers:
                observer.close()
            with contextlib.suppress(OSError):
                self._lease.give_up()
        return self.state

    def _rest(self) -> None:
        """Wait for the next turn, or the next event in the inbox."""
        waits = self.state.job.state == "PENDING" and not self.state.pending
        self._turn = (WAITING if waits else TRAINING) if self._pace.calm else TURN
        with contextlib.suppress(queue.Empty):
            self._apply(self._inbox.get(timeout=self._turn))

    def _begin(self) -> None:
        """Take the journal over before reading it, so that records which a replaced operator still adds do not count.

        Actions without a recorded answer are repeated.
        """
        self._journal.append(ev.Started(self._clock.now(), self._lease.epoch))
        folded = fold(self.run_dir.journal, self._show)
        self.state, self._journal.snapshots = folded.state, SnapshotWriter(folded)
        self._executor.remember(self.state.submissions, self.state.past_jobs)
        for action in self.state.pending:
            self._order(action)

    def _renew(self) -> None:
        """Renew the lease. A full disk must not end the operator: on this host, its process shows that it lives."""
        try:
            self._lease.renew()
        except OSError as error:
            log.error("cannot renew the lease: %s", error)

    def _keep_files(self, *, at_once: bool = False) -> None:
        job = self.state.job
        attempt = self.run_dir.attempt(job.id, job.restarts) if job.state == "RUNNING" else None
        restored = self._files.look(attempt, at_once=at_once)
        if restored:
            log.warning("files of the run were deleted, and are restored: %s", ", ".join(restored))
            self._apply(ev.FilesRestored(self._clock.now(), restored))

    def _observe(self) -> None:
        for event in self._follower.poll(self.state, self._clock.now()):
            self._apply(event)
        while True:
            try:
                self._apply(self._inbox.get_nowait())
            except queue.Empty:
                return

    def _apply(self, event: ev.Event) -> None:
        before = self.state
        remembered = self._remember(event)
        if remembered is None:
            return
        self.state, actions = remembered
        self._show(before, event, self.state)
        if actions or self.state != before:
            name = type(event).__name__
            told = {k: v for k, v in event_to_json(event).items() if k not in ("at", "type")}
            log.info("%s %s", name, told, extra={"event": name, "facts": told})
        if actions and self._lease.fenced():
            return  # the next turn leaves; the newer operator orders these
        for action in actions:
            self._order(action)

    def _show(self, before: State, event: ev.Event, after: State) -> None:
        for observer in self._observers:
            observer.seen(before, event, after)

    def _order(self, action: Action) -> None:
        facts = {"action": type(action).__name__, **plain(action)}
        log.info("order %s", action, extra={"event": "order", "facts": facts})
        if isinstance(action, (Submit, Restart)):
            self._keep_files(at_once=True)  # the next attempt reads them
        self._executor.do(action)

    def _remember(self, event: ev.Event) -> tuple[State, tuple[Action, ...]] | None:
        """Decide and record. While the disk is full, wait and do nothing. Return None if asked to leave meanwhile."""
        while True:
            try:
                return step_and_remember(self.state, event, self._journal)
            except JournalError as error:
                log.error("nothing is done that cannot be remembered; waiting: %s (%s)", error.what, error.why)
            if self._asked_to_leave or self._lease.fenced():
                return None
            time.sleep(FULL)
