"""Limits how fast bulk data is read or sent: the training needs the same network. Uses no socket and never waits."""

import threading
import time
from collections.abc import Callable

BURST = 4 << 20  # bytes that may be sent at once after a pause


class Throttle:
    """A token bucket of ``rate`` bytes per second, shared by any number of threads.

    In any t seconds it admits at most rate * t + burst bytes, in the order of the calls. The bytes of a waiting thread
    are already spent: if it gives up, it has still slowed down the others.
    """

    def __init__(self, rate: float, burst: int = BURST, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0 or not burst > 0:
            raise ValueError(f"the rate and the burst must be above 0, not {rate} and {burst}")
        self._rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left, self._seen = float(burst), clock()  # below 0: promised to waiting threads

    def take(self, count: int) -> float:
        """Return the seconds to wait before sending ``count`` bytes. Raises ValueError above the burst."""
        if count > self._burst:
            raise ValueError(f"{count} bytes at once, and {self._burst} are allowed")
        with self._lock:
            now = self._clock()
            self._left = min(float(self._burst), self._left + (now - self._seen) * self._rate)
            self._seen = now
            self._left -= count
            return max(0.0, -self._left / self._rate)
