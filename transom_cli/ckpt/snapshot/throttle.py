"""How fast a holder may send: the training needs the same network. It knows no socket, and never waits itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST = 4 << 20  # bytes that may go at once after a rest
_LEAST = 16 << 10  # bytes: a smaller slice costs more in calls than it gives in evenness
_SHARE = 0.05  # seconds of the rate that one slice takes: thirty lines have each had a turn in two


class Throttle:
    """A token bucket of ``rate`` bytes a second, shared by as many threads as like.

    In any t seconds no more than rate * t + burst bytes are let through, and who waits is served in the order of
    asking. A waiting thread's bytes are spent already: one that gives up has slowed the others.
    """

    def __init__(self, rate: float, burst: int = BURST, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0 or not burst > 0:
            raise ValueError(f"a rate and a burst above 0 are needed, not {rate} and {burst}")
        self._rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left, self._seen = float(burst), clock()  # below 0: promised to those who wait
        self.slice = max(1, min(burst, max(_LEAST, int(rate * _SHARE))))  # bytes to take at a time

    def take(self, count: int) -> float:
        """Seconds to wait before ``count`` bytes may go, 0 when they may go now. ValueError above the burst."""
        if count > self._burst:
            raise ValueError(f"{count} bytes at once, and {self._burst} are allowed")
        with self._lock:
            now = self._clock()
            self._left = min(float(self._burst), self._left + (now - self._seen) * self._rate)
            self._seen = now
            self._left -= count
            return max(0.0, -self._left / self._rate)
