"""The operator's loop: observe, remember, decide, act. All judgement is in `core`; all acting is in `hands`.

It survives `kill -9` at any moment: the journal is played through the core again, and whatever was ordered and not
answered is ordered once more.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable

from transom_cli.core import events as ev
from transom_cli.core.codec import event_to_json
from transom_cli.core.state import Phase, Stage, State
from transom_cli.layout import RunDir
from transom_cli.supervise.clock import Clock
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.hands import Hands
from transom_cli.supervise.journal import Journal, fold, step_and_remember
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.slurmwatch import SlurmWatch

log = logging.getLogger("transom.operator")

TURN = 0.1  # seconds between two turns of the loop
TICK = 1.0


class Pace:
    """How often to ask Slurm: often while something moves, seldom while beats tell that all is well."""

    def __init__(self, base: float, most: float) -> None:
        self._base = base
        self._most = most
        self._calm = 0
        self._moving = True

    def notice(self, state: State) -> bool:
        """Whether something has just begun to move: then the next look should not wait for its turn of calm days."""
        incident, was_moving = state.incident, self._moving
        self._moving = state.phase is not Phase.TRAINING or (
            incident is not None and incident.stage is not Stage.CLOSED
        )
        return self._moving and not was_moving

    def __call__(self) -> float:
        if self._moving:
            self._calm = 0
            return min(1.0, self._base)
        self._calm += 1
        return float(min(self._base * 1.5 ** min(self._calm, 20), self._most))


class Operator:
    def __init__(
        self,
        run: RunDir,
        lease: Lease,
        clock_from: Callable[[float], Clock],
        parts: Callable[[Clock, queue.SimpleQueue[ev.Event], Pace], tuple[Follower, SlurmWatch, Hands]],
        pace: Pace,
    ) -> None:
        folded = fold(run.journal)
        self.state = folded.state
        self._lease = lease
        self._journal = Journal(run.journal, lease.epoch)
        self._clock = clock_from(folded.last_at)
        self._inbox: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self._pace = pace
        self._follower, self._watch, self._hands = parts(self._clock, self._inbox, pace)
        self._asked_to_leave = False

    def leave(self) -> None:
        """Stop operating without touching the job; another operator carries on where the journal ends."""
        self._asked_to_leave = True

    def run(self) -> State:
        """Work until the run is over, a newer operator has taken it, or `leave` was called."""
        self._apply(ev.Started(self._clock.now(), self._lease.epoch))
        self._watch.start()
        ticked = self._clock.now()
        try:
            while not self.state.phase.over and not self._asked_to_leave:
                if self._lease.fenced():
                    log.warning("a newer operator has taken this run; leaving")
                    return self.state
                self._lease.renew()
                self._watch.follow(self.state.job_id, self.state.restarts, self.state.nodes)
                self._observe()
                if self._clock.now() - ticked >= TICK:
                    ticked = self._clock.now()
                    self._apply(ev.Tick(ticked))
                if self._pace.notice(self.state):
                    self._watch.look()
                time.sleep(TURN)
        finally:
            self._watch.stop()
            self._hands.stop()
            self._journal.close()
            self._lease.give_up()
        return self.state

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
        self.state, actions = step_and_remember(before, event, self._journal)
        if actions or self.state != before:
            told = {k: v for k, v in event_to_json(event).items() if k not in ("at", "type")}
            log.info("%s %s", type(event).__name__, told)
        for action in actions:
            log.info("order %s", action)
            self._hands.do(action)
