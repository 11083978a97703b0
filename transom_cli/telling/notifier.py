"""Follows a run's states for the operator, and has every target told what changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from transom_cli.core.events import Event
from transom_cli.core.state import State
from transom_cli.telling.courier import Courier
from transom_cli.telling.news import News, tellings

log = logging.getLogger("transom.operator")

LAST = 30.0  # seconds for the last words about a run that is over
LEAVING = 5.0  # seconds for what is under way, where another one may come
CUT = 2.0  # seconds for a command that is cut short


class Notifier:
    def __init__(self, couriers: Sequence[Courier]) -> None:
        self._couriers = tuple(couriers)
        self._since = 0.0
        self._over = False

    def seen(self, before: State, event: Event, after: State) -> None:
        """As of a Witness (supervise.operator): returns at once, raises nothing."""
        try:
            for news in tellings(before, self._since, after, event.at):
                self.tell(news)
        except Exception:  # whatever is wrong with a message, the run must not end for it
            log.exception("cannot tell of %s", type(event).__name__)
        self._since = event.at
        self._over = after.phase.over

    def tell(self, news: News) -> None:
        """Returns at once."""
        for courier in self._couriers:
            courier.tell(news)

    def close(self) -> None:
        """Give the last messages some time, all targets the same."""
        for courier in self._couriers:
            courier.close(over=self._over)
        self._wait(LAST if self._over else LEAVING)
        for courier in self._couriers:
            if self._over and courier.untold:  # no operator comes after this one
                log.error("%s was not told any more of %s", courier.target.name, ", ".join(courier.untold))
            courier.cut()
        self._wait(CUT)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for courier in self._couriers:
            courier.wait(until - time.monotonic())
