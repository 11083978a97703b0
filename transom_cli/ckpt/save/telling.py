"""Rank 0 tells the run whether its saves fail (`ckpt.failing`). Nothing of a save waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from transom_cli.ckpt.failing import Saves, written
from transom_cli.files import publish_text
from transom_cli.heartbeat import places
from transom_cli.heartbeat.own_table import own_attempt
from transom_cli.layout import AttemptDir

PATIENCE = 5.0  # seconds that close() waits for the last word to be written
IN_MEMORY, ON_DISK = "memory", "disk"  # what a save has to become, each with its own failures in a row

_lock = threading.Lock()  # of what follows
_told: dict[Path, dict[str, Saves]] = {}  # by file and directory, of all Checkpointers of this process
_writing = threading.Lock()


class Telling:
    """For any thread. Does nothing on other ranks, and outside a run."""

    def __init__(self, directory: Path, *, first: bool) -> None:
        attempt = _attempt() if first else None
        self._path = None if attempt is None else attempt.saves
        self._name = str(directory)
        self._failed: dict[str, Saves] = {}  # by what it had to become
        self._good = dict.fromkeys((IN_MEMORY, ON_DISK), -1)
        self._last: threading.Thread | None = None

    def began(self, step: int, *, durable: bool) -> None:
        """The training resumes from `step`, which is good."""
        self._good[IN_MEMORY] = step
        self._good[ON_DISK] = step if durable else -1

    def good(self, what: str, step: int) -> None:
        with _lock:
            self._failed.pop(what, None)
            self._good[what] = max(step, self._good[what])
            self._tell()

    def failed(self, what: str, step: int, why: str) -> None:
        with _lock:
            before = self._failed.get(what, Saves(since=time.time()))
            count = before.failed + 1
            self._failed[what] = replace(before, failed=count, step=step, why=why, good=self._good[what])
            self._tell()

    def close(self) -> None:
        if self._last is not None:
            self._last.join(PATIENCE)

    def _tell(self) -> None:
        if self._path is None:
            return
        fails = max(self._failed.values(), key=lambda saves: saves.failed, default=Saves())
        now = replace(fails, launch=places.own_launch())
        told = _told.setdefault(self._path, {})
        if told.get(self._name) == now:
            return
        told[self._name] = now
        self._last = threading.Thread(target=_write, args=(self._path,), name="transom-saves", daemon=True)
        self._last.start()


def _write(path: Path) -> None:
    """In a thread of its own: a file system that hangs holds up no save. The newest state is written, in any order."""
    with _writing:
        with _lock:
            text = written(_told[path])
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            publish_text(path, text)


def _attempt() -> AttemptDir | None:
    if not (os.environ.get(places.ATTEMPT_DIR) or os.environ.get(places.RUN_DIR)):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        return own_attempt()
    return None
