"""The thread in which saves are committed, and how long the trainer waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from transom_cli.ckpt.failures import RanksMissing
from transom_cli.ckpt.ranks import Ranks

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
