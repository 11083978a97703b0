"""The observer's clock: looks like Unix time, moves like the monotonic clock, and never falls."""

import time


class Clock:
    """Seconds. Wall time is read once, as the base; a clock that is set later does not move ours.

    `not_before` is the journal's last record, so that time never falls over a restart of the operator either.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._base = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        return self._base + time.monotonic()
