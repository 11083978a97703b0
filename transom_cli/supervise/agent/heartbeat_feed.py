"""The node's newest heartbeat table, which the launcher fetches over its connection with `beats`.

A call waits until there is a newer table than the caller has, so that news travel at once. While a launcher fetches,
the agent writes its table to the run directory rarely. If no call comes for `SILENT` seconds after an answer, the agent
writes it once a second again: the operator and the next launcher read the files then.
"""

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from transom_cli.rpc.verbs import Fields

WAIT = 1.5  # seconds that a call waits for a newer table, at most
SILENT = 1.5  # seconds from an answer to the next call; a launcher makes it at once


@dataclass(frozen=True)
class Beats:
    """A request for heartbeats."""

    seen: int  # the number of the newest table that the caller has
    steps: bool = False  # send the step breakdowns, too
    over: bool = False  # the attempt has its outcome


class HeartbeatFeed:
    """Thread-safe. ``steps``: the newest step breakdowns, as text. ``over``: the launcher says that all is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._changed = clock, threading.Condition()
        self._seq, self._data = -1, b""
        self._waiting, self._answered = 0, float("-inf")
        self.steps, self.over = "", False

    @property
    def newest(self) -> int:
        """The number of the newest table."""
        return self._seq

    def offer(self, seq: int, data: bytes) -> None:
        """Offer a newer table."""
        with self._changed:
            self._seq, self._data = seq, data
            self._changed.notify_all()

    def fetch(self, request: Beats) -> Fields:
        """Return the newest table as soon as it is not the one that the caller has."""
        if request.over:
            self.end()
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._seq != request.seen or self.over, WAIT)
            finally:
                self._waiting -= 1
                self._answered = self._clock()
            answer = {"seq": self._seq, "table": base64.b64encode(self._data).decode("ascii")}
        return {**answer, "steps": self.steps} if request.steps else answer

    def end(self) -> None:
        """Answer the waiting calls."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    @property
    def fetched(self) -> bool:
        """Whether a launcher fetches the tables."""
        with self._changed:
            return self._waiting > 0 or self._clock() - self._answered < SILENT
