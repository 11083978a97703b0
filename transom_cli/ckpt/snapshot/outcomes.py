"""What became of the writes of steps, as one holder knows it: of those that it sees to, and of what it has heard.

The holder that sees to a write tells all others when it has ended, so that ranks ask their own node's. It is asked
itself only for what has not been heard for long: one line every few seconds a node, however many ranks wait there.
"""

from __future__ import annotations

import threading
import time
from typing import TypeVar

RUNNING, COPYING, DONE, FAILED, UNKNOWN = "running", "copying", "done", "failed", "unknown"
ENDED = frozenset((COPYING, DONE, FAILED))  # nothing more becomes of the checkpoint itself
_REMEMBERED = 64  # of each kind
_SILENCE = 10.0  # seconds until it is asked for what it should have told
_UNSURE = 2.0  # seconds between questions while the answer is that nothing is known

T = TypeVar("T")
State = tuple[str, str]  # and the trouble, of one that failed


class Outcomes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._own: dict[int, State] = {}
        self._heard: dict[int, State] = {}
        self._ask_at: dict[int, float] = {}
        self._changed = threading.Condition()

    def begin(self, step: int) -> bool:
        """False where it is under way or done already."""
        with self._changed:
            if self._own.get(step, ("", ""))[0] in (RUNNING, COPYING, DONE):
                return False
            _remember(self._own, step, (RUNNING, ""))
            return True

    def set(self, step: int, state: str, trouble: str = "") -> None:
        with self._changed:
            self._own[step] = state, trouble
            self._changed.notify_all()

    def hear(self, step: int, state: str, trouble: str) -> None:
        """Of the holder that sees to it."""
        with self._changed:
            _remember(self._heard, step, (state, trouble))
            _remember(self._ask_at, step, time.monotonic() + (_UNSURE if state == UNKNOWN else _SILENCE))
            self._changed.notify_all()

    def tried_again(self, step: int) -> None:
        """A step that could not be written has been saved anew: how it went the last time says nothing any more."""
        with self._changed:
            for known in (self._own, self._heard):
                if known.get(step, ("", ""))[0] == FAILED:
                    del known[step]

    def own(self, step: int, patience: float = 0.0) -> State:
        """Of a write that this holder sees to: once it has ended, or as it is after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._own.get(step, ("", ""))[0] in ENDED, patience)
            return self._own.get(step, (UNKNOWN, ""))

    def heard(self, step: int, patience: float = 0.0) -> State:
        """The same of another's, which is taken to be under way until something else is heard."""
        with self._changed:
            self._changed.wait_for(lambda: self._heard.get(step, ("", ""))[0] in ENDED, patience)
            return self._heard.get(step, (RUNNING, ""))

    def due(self, step: int) -> bool:
        """Whether the holder that sees to it is to be asked now. Says so to one of those that wait for the step."""
        with self._changed:
            now = time.monotonic()
            at = self._ask_at.get(step, now + _SILENCE)
            _remember(self._ask_at, step, at if now < at else now + _SILENCE)
            return now >= at

    def copying(self, *, own: bool) -> list[int]:
        """Steps that are durable, and being written into a further directory."""
        with self._changed:
            return [n for n, (state, _) in (self._own if own else self._heard).items() if state == COPYING]

    @property
    def busy(self) -> bool:
        with self._changed:
            return any(state in (RUNNING, COPYING) for state, _ in self._own.values())

    def forget(self, step: int | None) -> None:
        """What is newer than `step` is of a past that did not happen: it may be asked for again, and so may what
        failed."""
        with self._changed:
            for known in (self._own, self._heard):
                for n in [n for n, (state, _) in known.items() if step is None or n > step or state == FAILED]:
                    if known is self._heard or known[n][0] not in (RUNNING, COPYING):
                        del known[n]
            self._ask_at = {n: at for n, at in self._ask_at.items() if step is not None and n <= step}


def _remember(known: dict[int, T], step: int, what: T) -> None:
    known[step] = what
    for old in sorted(known)[:-_REMEMBERED]:
        del known[old]
