"""A summary of what a node's snapshot daemon holds of one training, and the combination of all nodes' summaries.

As JSON (`core.codec`) an account is the answer to "state". The daemon of an agent also writes it into the attempt's
folder, so that it can be seen where no node can be reached. It removes the file when it ends in order. One that was
killed leaves it behind; so a living daemon touches it from time to time though nothing has changed, and a file that is
too old does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.schedule.plan import NextSaves
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.core.codec import build, plain
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir, parse_attempt
from transom_cli.plural import several

BEING_PROTECTED = "being protected"


@dataclass(frozen=True)
class Held:
    """A rank's share on the node."""

    rank: int
    file: str
    size: int  # bytes


@dataclass(frozen=True)
class Step:
    """A committed step."""

    step: int
    created: str  # when it was committed, as its manifest has it: UTC, ISO 8601
    attempt: str
    world_size: int
    size: int  # bytes in all of its files, on all nodes
    shares: int  # that its record names, on all nodes
    here: tuple[Held, ...]
    uses: tuple[str, ...]  # for what it is kept until that is done: "being protected", "being made durable"


@dataclass(frozen=True)
class Account:
    directory: str
    steps: tuple[Step, ...]  # newest first
    protect: str  # the requested protection, as `protection.parse` reads it
    protected: int | None  # the newest step that is
    left_out: tuple[str, ...]  # nodes whose shares its parity does not cover
    parity: int  # bytes
    slots: int  # bytes
    nodes: int  # that take part in the training
    rhythm: str = ""  # when it saves and why, in words; of rank 0's node
    coming: NextSaves | None = None  # and as planned
    under_way: tuple[Part, ...] = ()  # what is written and restored, as far as it is on this node


@dataclass(frozen=True)
class InMemory:
    """A step, as all nodes that answered hold it."""

    step: int
    created: str
    attempt: str
    world_size: int
    size: int  # bytes
    nodes: tuple[str, ...]  # with its record
    of: int  # nodes that take part
    missing: int  # shares that none of them holds; parity may give them back
    protection: str  # in words
    uses: tuple[str, ...]

    @property
    def committed(self) -> float | None:
        """Seconds since the epoch, by the clock of rank 0's node."""
        try:
            return datetime.fromisoformat(self.created).timestamp()
        except ValueError:
            return None

    @property
    def where(self) -> str:
        lacking = f", {self.missing} of its shares missing" if self.missing else ""
        return f"memory, {len(self.nodes)} of {several(self.of, 'node')}{lacking}"


def together(accounts: Mapping[str, Account]) -> list[InMemory]:
    """The steps in memory, newest first, from the accounts of one training by node."""
    by_commit: dict[tuple[int, str, str], dict[str, Step]] = {}
    for node, account in accounts.items():
        for step in account.steps:
            by_commit.setdefault((step.step, step.created, step.attempt), {})[node] = step
    of = max((account.nodes for account in accounts.values()), default=0)
    found = []
    for (number, created, attempt), steps in sorted(by_commit.items(), reverse=True):
        held = {share.file for step in steps.values() for share in step.here}
        uses = tuple(sorted({use for step in steps.values() for use in step.uses}))
        one = next(iter(steps.values()))
        words = _protection(number, uses, [accounts[node] for node in steps])
        missing = max(0, one.shares - len(held))
        found.append(
            InMemory(number, created, attempt, one.world_size, one.size, tuple(sorted(steps)), of, missing, words, uses)
        )
    return found


def newest_whole(trainings: Iterable[Mapping[str, Account]]) -> InMemory | None:
    """Return the newest complete step of each training, by node."""
    whole = [step for accounts in trainings for step in together(accounts) if not step.missing]
    return max(whole, key=lambda step: step.step, default=None)


def _protection(step: int, uses: tuple[str, ...], accounts: list[Account]) -> str:
    scheme = accounts[0].protect
    if scheme == str(NONE):
        return "not protected"
    by = [account for account in accounts if account.protected == step]
    if by:
        out = sorted({node for account in by for node in account.left_out})
        return f"{scheme}, protected" + (f" but for {', '.join(out)}" if out else "")
    return f"{scheme}, {BEING_PROTECTED if BEING_PROTECTED in uses else 'not protected'}"


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
