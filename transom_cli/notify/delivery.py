"""Delivers notifications: a worker thread for each target, with rate limit, retries, and a log of what was sent.

The operator waits for nothing: a file system, name server or command that hangs holds up its own worker only. The log
keeps an operator that takes over from sending again; each operator writes its own file and reads all of them.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

from transom_cli.core.events import Event
from transom_cli.core.operator.state import State
from transom_cli.files import json_lines, open_private
from transom_cli.notify.events import Notification, notifications_for
from transom_cli.notify.messages import About, DeliveryError, Target, message
from transom_cli.notify.senders import Send

log = logging.getLogger("transom.operator")

HOUR = 3600.0
HURRY = 3.0  # seconds between tries while the operator of a finished run waits
APART = 3  # notifications waiting at the same time that are still sent one by one
MOST = 200  # waiting for a target; beyond that, the oldest are dropped
FIRST, CAP = 1.0, 300.0  # seconds before the second try, and at most between two
MAX_AGE = 3600.0  # seconds after which a notification is too old to be sent


def due(waiting: tuple[Notification, ...], sent: tuple[float, ...], now: float, per_hour: int) -> tuple[int, float]:
    """Return how many of `waiting` (oldest first) go into the next message; if 0, also the seconds to wait.

    The end of a run is sent at once, with everything that waits.

    Args:
        sent: When messages went out.
    """
    if not waiting:
        return 0, HOUR
    recent = sorted(at for at in sent if 0 <= now - at < HOUR)
    free = per_hour - len(recent)
    if free <= 0 and not any(notification.final for notification in waiting):
        return 0, max(0.0, recent[-per_hour] + HOUR - now)
    apart = len(waiting) <= min(APART, free)
    return (1 if apart else len(waiting)), 0.0


def pause(failures: int, requested: float = 0.0) -> float:
    """Return the seconds before the next try. requested: a delay that the server requested."""
    return max(min(FIRST * 2.0 ** min(failures - 1, 20), CAP), min(requested, 2 * CAP))


DELIVERED, GIVEN_UP, DROPPED = "delivered", "given up", "dropped"


class DeliveryLog:
    """The log, shared by the workers of all targets."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._path = folder / f"{epoch}.jsonl"
        self._lock = threading.Lock()  # never held while waiting for a disk
        self._writing = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._sent: dict[str, tuple[float, ...]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        for record in _records(folder):
            target, keys, at = record.get("target"), record.get("keys"), record.get("at")
            if isinstance(target, str) and isinstance(keys, list) and isinstance(at, (int, float)):
                self._note(target, [str(k) for k in keys], str(record.get("how")), float(at))

    def known(self, target: str, key: str) -> bool:
        """Whether the notification is finished."""
        with self._lock:
            return (target, key) in self._known

    def sent(self, target: str) -> tuple[float, ...]:
        """Return when the last 1,000 messages went out."""
        with self._lock:
            return self._sent.get(target, ())

    def counts(self) -> dict[tuple[str, str], int]:
        """Count messages (if dropped: notifications) by target and result."""
        with self._lock:
            return dict(self._counts)

    def note(self, target: str, keys: Iterable[str], how: str, at: float) -> None:
        """Record a result. If it cannot be written, the next operator may send the message again."""
        keys = list(keys)
        with self._lock:
            self._note(target, keys, how, at)
        record = {"at": round(at, 3), "target": target, "how": how, "keys": keys}
        try:
            with self._writing:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                with open_private(self._path, "ab", buffering=0) as file:
                    file.write(json.dumps(record).encode() + b"\n")
                    os.fsync(file.fileno())
        except OSError as error:
            log.warning("cannot record sent notifications: %s", error)

    def _note(self, target: str, keys: list[str], how: str, at: float) -> None:
        self._known.update((target, key) for key in keys)
        self._counts[target, how] = self._counts.get((target, how), 0) + (len(keys) if how == DROPPED else 1)
        if how == DELIVERED:
            self._sent[target] = (*self._sent.get(target, ()), at)[-1000:]


def _records(folder: Path) -> Iterable[dict[str, object]]:
    try:
        paths = sorted(folder.glob("*.jsonl"))
    except OSError:
        return
    for path in paths:
        try:
            yield from json_lines(path.read_bytes())
        except OSError as error:
            log.warning("cannot read sent notifications: %s", error)


class DeliveryWorker:
    """Delivers to one target, in a thread of its own: one message at a time."""

    def __init__(
        self,
        target: Target,
        about: About,
        send: Send,
        sent: DeliveryLog,
        per_hour: int,
        clock: Callable[[], float] = time.time,
        wait: Callable[[int, float], float] = pause,
    ) -> None:
        """Start with the first notification.

        Args:
            clock: The clock of the notifications.
            wait: Seconds before the next try, from the number of failures and the delay that the server requested.
        """
        self.target = target
        self._about, self._send, self._log, self._per_hour = about, send, sent, per_hour
        self._clock, self._wait = clock, wait
        self._changed = threading.Condition()
        self._waiting: tuple[Notification, ...] = ()
        self._asked: set[str] = set()  # keys received; the log has those sent
        self._dropped: tuple[str, ...] = ()  # keys
        self._closing = False
        self._leaving = threading.Event()  # begin no further message
        self._end = threading.Event()  # abort the current message
        work = copy_context().run  # its log lines go where those of its maker go
        self._thread = threading.Thread(target=work, args=(self._run,), name=f"notify-{target.name}", daemon=True)

    def submit(self, notification: Notification) -> None:
        """Queue a notification and return at once; ignore it if it was sent, is too old or unwanted."""
        known = notification.key in self._asked or self._log.known(self.target.name, notification.key)
        if known or notification.kind not in self.target.events:
            return
        if self._clock() - notification.at > MAX_AGE and not notification.final:
            return
        with self._changed:
            self._asked.add(notification.key)
            waiting = (*self._waiting, notification)
            self._dropped += tuple(old.key for old in waiting[:-MOST])
            self._waiting = waiting[-MOST:]
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def close(self, *, over: bool) -> None:
        """Accept no more. If the run is over, still send what waits; otherwise leave it to the next operator."""
        if not over:
            self._leaving.set()
        with self._changed:
            self._closing = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(seconds, 0.0))

    @property
    def undelivered(self) -> tuple[str, ...]:
        """Return the keys of notifications that still wait."""
        with self._changed:
            return tuple(notification.key for notification in self._waiting)

    def cut(self) -> None:
        """End at once, and abort the current message."""
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
            except DeliveryError as error:
                failures, after = failures + 1, error.after
                self._failed(batch, str(error), again=error.again, first=failures == 1)
                failures = failures if error.again else 0
            except Exception:
                log.exception("cannot notify %s of %s", self.target.name, batch[-1].key)
                self._done(batch, GIVEN_UP)
            else:
                failures = 0
                log.info("notified %s of %s", self.target.name, ", ".join(notification.key for notification in batch))
                self._done(batch, DELIVERED)

    def _rest(self, seconds: float) -> None:
        """Pause after a failure, only briefly at the end of a run."""
        began = time.monotonic()
        with self._changed:
            while not self._leaving.is_set():
                left = began + (min(seconds, HURRY) if self._closing else seconds) - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _next(self) -> tuple[Notification, ...]:
        """Wait until a message may go out, and return its notifications; () if there are no more."""
        while not self._leaving.is_set():
            with self._changed:
                count, later = due(self._waiting, self._log.sent(self.target.name), self._clock(), self._per_hour)
                if count:
                    return self._waiting[:count]
                if self._closing and not self._waiting:
                    return ()
                if self._closing:
                    later = min(later, 1.0)
                self._changed.wait(later)
        return ()

    def _failed(self, batch: tuple[Notification, ...], words: str, *, again: bool, first: bool) -> None:
        old = self._clock() - batch[-1].at > MAX_AGE
        if again and not old:
            (log.warning if first else log.info)("cannot notify %s, will retry: %s", self.target.name, words)
            return
        keys = ", ".join(notification.key for notification in batch)
        log.error("cannot notify %s of %s, given up: %s", self.target.name, keys, words)
        self._done(batch, GIVEN_UP)

    def _done(self, batch: tuple[Notification, ...], how: str) -> None:
        keys = [notification.key for notification in batch]
        with self._changed:
            self._waiting = tuple(notification for notification in self._waiting if notification.key not in keys)
            dropped, self._dropped = [key for key in self._dropped if key not in keys], ()
        self._log.note(self.target.name, keys, how, self._clock())
        if dropped:
            log.error("%d notifications for %s dropped: too many were waiting", len(dropped), self.target.name)
            self._log.note(self.target.name, dropped, DROPPED, self._clock())


@dataclass(frozen=True)
class EndWaits:
    """Seconds that an operator waits at its end."""

    final: float = 30.0  # to deliver the last notifications of a run that is over
    leaving: float = 5.0  # for the current message, if another operator may follow
    cut: float = 2.0  # for an aborted command


class Notifier:
    """Follows a run's states for the operator, and passes notifications to every target's worker."""

    def __init__(self, workers: Sequence[DeliveryWorker], cluster: str = "", waits: EndWaits = EndWaits()) -> None:
        """cluster: as `job.cluster`."""
        self._workers, self._cluster, self._waits = tuple(workers), cluster, waits
        self._since = 0.0
        self._over = False

    def seen(self, before: State, event: Event, after: State) -> None:
        """Observe a transition, as an Observer (supervise.operator) does: return at once, raise nothing."""
        try:
            for notification in notifications_for(before, self._since, after, event.at, self._cluster):
                self.submit(notification)
        except Exception:  # a notification must never end the run
            log.exception("cannot notify of %s", type(event).__name__)
        self._since = event.at
        self._over = after.phase.over

    def submit(self, notification: Notification) -> None:
        """Queue a notification for every target, and return at once."""
        for worker in self._workers:
            worker.submit(notification)

    def close(self) -> None:
        """Give all targets together some time for the last messages."""
        for worker in self._workers:
            worker.close(over=self._over)
        self._wait(self._waits.final if self._over else self._waits.leaving)
        for worker in self._workers:
            if self._over and worker.undelivered:  # no operator follows
                log.error("%s was not notified of %s", worker.target.name, ", ".join(worker.undelivered))
            worker.cut()
        self._wait(self._waits.cut)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for worker in self._workers:
            worker.wait(until - time.monotonic())
