"""Tells one target, in a thread of its own: one message after the other, again after a failure, and so many an hour.

Whoever gives it news waits for nothing: a file system that hangs, a name server, a command hold up this thread alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from transom_cli.telling.ledger import DROPPED, GIVEN_UP, TOLD, Ledger
from transom_cli.telling.news import News
from transom_cli.telling.pacing import MOST, PATIENCE, due, pause
from transom_cli.telling.senders import Send
from transom_cli.telling.target import Target, Undelivered
from transom_cli.telling.words import About, message

log = logging.getLogger("transom.operator")

HURRY = 3.0  # seconds between two tries while the operator of a run that is over waits


class Courier:
    def __init__(
        self,
        target: Target,
        about: About,
        send: Send,
        ledger: Ledger,
        per_hour: int,
        clock: Callable[[], float] = time.time,
        wait: Callable[[int, float], float] = pause,
    ) -> None:
        """clock: as that of the news. wait: seconds before the next try, after how many failures and as asked."""
        self.target = target
        self._about, self._send, self._ledger, self._per_hour = about, send, ledger, per_hour
        self._clock, self._wait = clock, wait
        self._changed = threading.Condition()
        self._waiting: tuple[News, ...] = ()
        self._asked: set[str] = set()  # keys of what has come in: the ledger knows of what has gone out
        self._dropped: tuple[str, ...] = ()  # keys
        self._closing = False
        self._leaving = threading.Event()  # no further message is begun
        self._end = threading.Event()  # the one under way is to be cut short
        self._thread = threading.Thread(target=self._run, name=f"tell-{target.name}", daemon=True)

    def tell(self, news: News) -> None:
        """Returns at once. What was told already, is not asked for, or is too old, is passed over."""
        if news.kind not in self.target.events or news.key in self._asked or self._ledger_knows(news):
            return
        if self._clock() - news.at > PATIENCE and not news.final:
            return
        with self._changed:
            self._asked.add(news.key)
            waiting = (*self._waiting, news)
            self._dropped += tuple(old.key for old in waiting[:-MOST])
            self._waiting = waiting[-MOST:]
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def _ledger_knows(self, news: News) -> bool:
        return self._ledger.known(self.target.name, news.key)

    def close(self, *, over: bool) -> None:
        """No more news. What waits is still told where the run is over, and else left to the next operator."""
        if not over:
            self._leaving.set()
        with self._changed:
            self._closing = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(seconds, 0.0))

    @property
    def untold(self) -> tuple[str, ...]:
        """Keys of what still waits."""
        with self._changed:
            return tuple(news.key for news in self._waiting)

    def cut(self) -> None:
        """At once; also what is under way."""
        self._end.set()
        self.close(over=False)

    def _run(self) -> None:
        failures, after = 0, 0.0
        while not self._leaving.is_set():
            self._rest(self._wait(failures, after) if failures else 0.0)
            batch = self._next()
            if not batch:
                return
            try:
                self._send(message(batch, self._about, self.target), self._end)
            except Undelivered as error:
                failures, after = failures + 1, error.after
                self._failed(batch, str(error), again=error.again, first=failures == 1)
                failures = failures if error.again else 0
            except Exception:
                log.exception("cannot tell %s of %s", self.target.name, batch[-1].key)
                self._done(batch, GIVEN_UP)
            else:
                failures = 0
                log.info("told %s of %s", self.target.name, ", ".join(news.key for news in batch))
                self._done(batch, TOLD)

    def _rest(self, seconds: float) -> None:
        """After a failure. At the end of a run there is no time for long ones."""
        began = time.monotonic()
        with self._changed:
            while not self._leaving.is_set():
                left = began + (min(seconds, HURRY) if self._closing else seconds) - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _next(self) -> tuple[News, ...]:
        """What the next message is about, once it may go out. Empty: there is no more."""
        while not self._leaving.is_set():
            with self._changed:
                count, later = due(self._waiting, self._ledger.sent(self.target.name), self._clock(), self._per_hour)
                if count:
                    return self._waiting[:count]
                if self._closing and not self._waiting:
                    return ()
                if self._closing:
                    later = min(later, 1.0)
                self._changed.wait(later)
        return ()

    def _failed(self, batch: tuple[News, ...], words: str, *, again: bool, first: bool) -> None:
        old = self._clock() - batch[-1].at > PATIENCE
        if again and not old:
            (log.warning if first else log.info)("cannot tell %s, trying again: %s", self.target.name, words)
            return
        keys = ", ".join(news.key for news in batch)
        log.error("cannot tell %s of %s, given up: %s", self.target.name, keys, words)
        self._done(batch, GIVEN_UP)

    def _done(self, batch: tuple[News, ...], how: str) -> None:
        keys = [news.key for news in batch]
        with self._changed:
            self._waiting = tuple(news for news in self._waiting if news.key not in keys)
            dropped, self._dropped = [key for key in self._dropped if key not in keys], ()
        self._ledger.note(self.target.name, keys, how, self._clock())
        if dropped:
            log.error("%d news for %s were too many and are dropped", len(dropped), self.target.name)
            self._ledger.note(self.target.name, dropped, DROPPED, self._clock())
