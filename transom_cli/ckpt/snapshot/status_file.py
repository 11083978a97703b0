"""Status files: what a node's snapshot daemon holds, shown where the node cannot be reached.

The daemon of an agent writes its accounts into the attempt's folder and removes the file when it ends normally. A
killed daemon leaves its file behind. So a living daemon touches the file from time to time, and a file that is too old
does not count.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transom_cli.ckpt.snapshot.account import Account
from transom_cli.core.codec import build, plain
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir, parse_attempt

SCHEMA = 1
LOOK = 2.0  # seconds between two looks at what has changed: it is written no oftener
SIGN = 20.0  # seconds after which it is touched in any case
SILENT = 60.0  # seconds without a sign of life, after which the writer counts as dead
PARTING = 5.0  # seconds for a file system that does not answer


class StatusWriter:
    """In a thread of its own. A folder that is full, read-only or gone costs nothing but that nobody sees it."""

    def __init__(self, path: Path, accounts: Callable[[], list[Account]]) -> None:
        self._path, self._accounts = path, accounts
        self._shown: list[Any] | None = None  # None: the file's content is unknown
        self._touched = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shown", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is held any more."""
        self._over.set()
        self._thread.join(PARTING)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            try:
                self._look(time.monotonic())
            except OSError:
                self._shown = None  # tried again by the next look

    def _look(self, now: float) -> None:
        trainings = [plain(account) for account in self._accounts()]
        if trainings != self._shown:
            self._show(trainings)
        elif trainings and now - self._touched >= SIGN:
            os.utime(self._path)
        else:
            return
        self._touched = now

    def _show(self, trainings: list[Any]) -> None:
        if trainings:
            publish_text(self._path, json.dumps({"schema": SCHEMA, "trainings": trainings}))
        else:
            self._path.unlink(missing_ok=True)
        self._shown = trainings


@dataclass
class TrainingStatus:
    """What the files of an attempt tell of one training. `silent`: nodes whose daemons have given no sign for too long,
    by how many seconds; nothing of theirs is counted."""

    accounts: dict[str, Account] = field(default_factory=dict)
    age: float = 0.0  # seconds since the oldest sign of those that count
    silent: dict[str, float] = field(default_factory=dict)


def newest_attempt(attempts: Path) -> AttemptDir | None:
    """The attempt that may have something in memory: the newest, while it has no outcome."""
    found = []
    with contextlib.suppress(OSError):
        for path in attempts.iterdir():
            with contextlib.suppress(ValueError):
                found.append((parse_attempt(path.name), path))
    if not found:
        return None
    attempt = AttemptDir(max(found)[1])
    return None if attempt.outcome.exists() else attempt


def read_all(attempt: AttemptDir, now: float) -> dict[str, TrainingStatus]:
    """By training (its directory) what is shown of it. `now`: seconds since the epoch."""
    found: dict[str, TrainingStatus] = {}
    for path in sorted(attempt.nodes.glob("*.memory")):
        try:
            age, document = max(0.0, now - path.stat().st_mtime), json.loads(path.read_bytes())
            if document["schema"] != SCHEMA:
                continue
            accounts = [build(Account, training) for training in document["trainings"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # removed meanwhile, or of another version
        for account in accounts:
            sight = found.setdefault(account.directory, TrainingStatus())
            if age > SILENT:
                sight.silent[path.stem] = age
            else:
                sight.accounts[path.stem] = account
                sight.age = max(sight.age, age)
    return found


def read(attempt: AttemptDir, directory: Path, now: float) -> TrainingStatus:
    """Return the status of the training that checkpoints into `directory`."""
    sights = read_all(attempt, now)
    return next((sight for name, sight in sights.items() if _same(name, directory)), TrainingStatus())


def _same(recorded: str, directory: Path) -> bool:
    return recorded == str(directory.absolute()) or os.path.realpath(recorded) == os.path.realpath(directory)
