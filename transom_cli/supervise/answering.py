"""Detects file systems that do not respond, from threads of a process whose other threads would hang in them.

While a file server is down, every call blocks (NFS with `hard`, the default). `statvfs` asks the server itself: no
client answers it from its cache.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path

PATIENCE = 10.0  # seconds without an answer, after which it is reported
EVERY = 1.0  # seconds from an answer to the next question
TURN = 0.25


class Answering:
    """Watches the file system of one folder, and calls these functions from a thread.

    Args:
        lost: Called when there was no answer for `patience` seconds, with the time since when (Unix time).
        still: Called in each turn after that, with the seconds without an answer.
        back: Called when the file system responds again, with the seconds without an answer.

    An error is an answer. Time in which this process itself was stopped does not count.
    """

    def __init__(
        self,
        folder: Path,
        lost: Callable[[float], object],
        back: Callable[[float], object] = lambda _: None,
        still: Callable[[float], object] = lambda _: None,
        patience: float = PATIENCE,
    ) -> None:
        self.folder, self.patience = folder, patience
        self.lost, self.back, self.still = lost, back, still
        self.within = copy_context().run
        self._answers = 0
        self._stopped = threading.Event()

    def start(self) -> Answering:
        for work in (self._ask, self._judge):
            threading.Thread(target=work, name=f"answering-{work.__name__}", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop. Returns at once; a call that hangs ends with the process, or when it is answered."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.wait(EVERY if self._answers else 0.0):
            with contextlib.suppress(OSError):
                os.statvfs(self.folder)
            self._answers += 1

    def _judge(self) -> None:
        heard, silent, reported, turned = 0, 0.0, False, time.monotonic()
        while not self._stopped.wait(TURN):
            now = time.monotonic()
            silent, turned = silent + min(now - turned, 2 * TURN), now
            if self._answers != heard:
                if reported:
                    self.back(silent)
                heard, silent, reported = self._answers, 0.0, False
            elif reported:
                self.still(silent)
            elif silent >= self.patience:
                reported = True
                self.lost(time.time() - silent)


class Folders:
    """Watches many folders with one `Answering` for each file system, for a process with many runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[tuple[int, float], Answering] = {}
        self._watched: dict[tuple[int, float], list[Answering]] = {}

    def add(self, watch: Answering) -> None:
        """Call the watch's functions as its own threads would, until `remove`."""
        try:
            key = (watch.folder.stat().st_dev, watch.patience)
        except OSError:
            return  # there is nothing to lose
        with self._lock:
            self._watched.setdefault(key, []).append(watch)
            if key not in self._shared:
                each = partial(self._each, key)
                shared = Answering(
                    watch.folder,
                    lambda since: each(lambda one: one.lost(since)),
                    lambda seconds: each(lambda one: one.back(seconds)),
                    lambda seconds: each(lambda one: one.still(seconds)),
                    watch.patience,
                )
                self._shared[key] = shared.start()

    def remove(self, watch: Answering) -> None:
        with self._lock:
            for key, watches in self._watched.items():
                if watch in watches:
                    watches.remove(watch)
                    if not watches and key in self._shared:
                        self._shared.pop(key).stop()

    def _each(self, key: tuple[int, float], call: Callable[[Answering], object]) -> None:
        with self._lock:
            watches = tuple(self._watched.get(key, ()))
        for watch in watches:
            watch.within(call, watch)


def interrupted() -> bool:
    """Return whether a Ctrl-C is pending, because the main thread is blocked in the kernel (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pending = next((line.split()[1] for line in lines if line.startswith("ShdPnd:")), "0")
    return bool(int(pending, 16) & 1 << (signal.SIGINT - 1))
