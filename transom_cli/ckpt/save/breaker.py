"""Bounds on what a trainer waits for: a silent daemon, a file system that does not respond, other ranks."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from transom_cli.ckpt.failures import RanksMissing
from transom_cli.ckpt.ranks import Ranks
from transom_cli.rpc.errors import RpcError, Unreachable
from transom_cli.rpc.local import Client

_LONG = 1e9  # seconds: until the daemon answers or ends

T = TypeVar("T")


def timed_out(error: Unreachable) -> bool:
    """Whether the daemon is there and did not answer in time, as if it was stopped. Otherwise its connection broke."""
    return isinstance(error.__cause__, TimeoutError)


class Breaker:
    """Keeps calls away from a daemon that does not answer.

    After one call has timed out, `check` raises at once. A thread of its own waits until the daemon answers or ends.
    For any thread.
    """

    def __init__(self, connect: Callable[[], Client], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect, self._clock = connect, clock
        self._since: float | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise Unreachable while the daemon does not answer."""
        since = self._since
        if since is not None:
            seconds = self._clock() - since
            raise Unreachable(f"The node's snapshot daemon does not answer (for {seconds:.0f} s)", "it may be stopped")

    def trip(self) -> None:
        """A call has timed out."""
        with self._lock:
            if self._since is not None:
                return
            self._since = self._clock()
        threading.Thread(target=self._wait, name="transom-breaker", daemon=True).start()

    def _wait(self) -> None:
        client: Client | None = None
        try:
            client = self._connect()
            client.call("hello", timeout=_LONG)
        except (RpcError, OSError):
            pass  # it has ended: the next call starts another one
        finally:
            self._since = None
            if client is not None:
                client.close()


class Bounded(Generic[T]):
    """Runs calls that may never return, each in a thread of its own, one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: threading.Thread | None = None

    def call(self, function: Callable[[], T], seconds: float, default: T) -> T:
        """Return the result, or `default` after `seconds`, or at once while an earlier call has not returned."""
        if self._running is not None and self._running.is_alive():
            return default
        found: list[T] = []
        self._running = thread = threading.Thread(target=lambda: found.append(function()), name=self._name, daemon=True)
        thread.start()
        thread.join(seconds)
        return found[0] if found else default


class Patience:
    """How long saves may wait for earlier ones: `most` seconds at once, and a `part` of the time in the long run."""

    def __init__(self, most: float, part: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._part, self._clock = most, part, clock
        self._left, self._at = most, clock()

    @property
    def left(self) -> float:
        """Seconds that a save may wait now."""
        now = self._clock()
        self._left, self._at = min(self._most, self._left + self._part * (now - self._at)), now
        return self._left

    def spend(self, seconds: float) -> None:
        self._left = max(0.0, self.left - seconds)

    def refill(self) -> None:
        """A save was committed: all is well."""
        self._left = self._most


SLACK = 2.0  # seconds: the exchange fails first, and says why


class Background:
    """One thread, whose work waits for other ranks. Called by the trainer, except `lost`.

    absence: seconds to wait for ranks that do not come. lost: the error after that; nothing can be exchanged any more.
    """

    def __init__(self, ranks: Ranks, absence: float) -> None:
        self._ranks, self.absence = ranks, absence
        self.lost: RanksMissing | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transom-ckpt")
        self._last: Future[None] | None = None

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run it after what was started before."""
        self._last = self._thread.submit(work, *arguments)

    def add(self, work: Callable[[], None]) -> None:
        """Run it too; nobody waits for it. Raises RuntimeError if this is closed."""
        self._thread.submit(work)

    @property
    def busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def wait(self, most: float = math.inf) -> bool:
        """Wait for what was started last, at most `most` seconds. Return whether it has finished.

        Raises:
            RanksMissing: it waits for ranks that do not come. Also raises what the work raised.
        """
        if self._last is None:
            return True
        if not self.wait_for(self._last, most):
            return False
        self._last.result()
        self._last = None
        return True

    def wait_for(self, work: Future[Any], most: float = math.inf) -> bool:
        """The same, for a result that the thread will set."""
        end = time.monotonic() + most
        while (left := end - time.monotonic()) > 0:
            if wait([work], min(self.absence + SLACK, left)).done:
                return True
            self._raise_if_missing(work)
        return work.done()

    def raise_lost(self) -> None:
        if self.lost is not None:
            raise self.lost

    def close(self) -> None:
        self._thread.shutdown(wait=self.lost is None)

    def _raise_if_missing(self, work: Future[Any]) -> None:
        attendance = self._ranks.attendance
        error = attendance.missing(self.absence) if attendance is not None else None
        if error is not None and not wait([work], SLACK).done:
            self.lost = error
            raise error
