"""How far this rank is with a restore, told to its node's memory holder, for whoever looks. No collective."""

from __future__ import annotations

import time
from collections.abc import Callable

from transom_cli.ckpt.underway import CHECKING, LOADING, Counting, Part

EVERY = 1.0  # seconds between two words: the holder shows it no oftener than every other


class Progress:
    """For the thread that restores. `tell` may cost a message to another process of this node."""

    def __init__(self, tell: Callable[[Part], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told = 0.0
        self._now: Counting | None = None
        self._about: tuple[int, str, float] = (-1, "", 0.0)

    def of(self, step: int, place: str) -> None:
        """It is this step that is tried next, from that directory; "": from memory."""
        self._about, self._now = (step, place, time.time()), None

    def checking(self, total: int, whole: int) -> None:
        """This rank reads so many bytes, to make their checksum; all of them together `whole`."""
        self._begin(CHECKING, total, whole)

    def loading(self, total: int) -> None:
        """And so many for the live state."""
        self._begin(LOADING, total)

    def add(self, count: int) -> None:
        if self._now is not None:
            self._now.add(count)
            if self._clock() - self._told >= EVERY:
                self._say(self._now)

    def _begin(self, what: str, total: int, whole: int = 0) -> None:
        step, place, began = self._about
        self._now = Counting(what, step, place, total, began, whole)
        self._say(self._now)

    def _say(self, now: Counting) -> None:
        self._told = self._clock()
        self._tell(now.part)
