"""Reads what an attempt's files tell of its nodes. One listing, and no file that nothing is asked of.

A thousand nodes have thousands of small files, on a file system that may be slow to open each of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from transom_cli.beats.table import BadTable, NodeTable, decode
from transom_cli.layout import AttemptDir
from transom_cli.ui.nodestate import Found, NodeSight

LISTED = 5.0  # seconds between two listings, for whoever looks again and again
TAIL = 64 << 10  # bytes of a node's findings that are looked through
_TELLING = (b'"suspect"', b'"fail"')  # without one of them nothing in there speaks against the node


class NodeReader:
    """Tells by node what is known of it, and when the newest table was written, by the file system's clock.

    For whoever looks again and again. budget: seconds that a look may take, more or less: tables that it leaves out
    come first at the next one, and are shown as they were."""

    def __init__(self, budget: float = float("inf")) -> None:
        self._budget = budget
        self._attempt = ""
        self._begin()

    def _begin(self) -> None:
        self._listed, self._beside = float("-inf"), frozenset[str]()
        self._nodes: list[str] = []
        self._turn = 0
        self._sights: dict[str, NodeSight] = {}
        self._sizes: dict[str, int] = {}  # of the findings that were read
        self._newest: float | None = None

    def read(self, attempt: AttemptDir) -> tuple[dict[str, NodeSight], float | None]:
        now = time.monotonic()
        if attempt.name != self._attempt:
            self._attempt = attempt.name
            self._begin()
        if self._budget == float("inf") or now - self._listed >= LISTED:
            self._list(attempt, now)
        read = self._read_some(attempt, now + self._budget)
        seen = [written for _, written, _ in read.values() if written]
        self._newest = max([*seen, *([self._newest] if self._newest is not None else [])], default=None)
        for node, (table, written, found) in read.items():
            before = self._sights.get(node, NodeSight())
            if table is None:
                if found or node in self._sights or node in self._beside:
                    self._sights[node] = replace(before, found=found)
            else:  # how much older it was than the newest at this look
                self._sights[node] = NodeSight(table, max(0.0, (self._newest or written) - written), found)
        return dict(self._sights), self._newest

    def _list(self, attempt: AttemptDir, now: float) -> None:
        names = _names(str(attempt.nodes))
        self._listed = now
        self._beside = frozenset(name[:-6] for name in names if name.endswith(".jsonl"))
        self._nodes = sorted({*self._beside, *(name[:-6] for name in names if name.endswith(".beats"))})

    def _read_some(
        self, attempt: AttemptDir, deadline: float
    ) -> dict[str, tuple[NodeTable | None, float, tuple[Found, ...]]]:
        """Of the nodes whose turn it is: table, when it was written, findings. All of them at the first look."""
        read: dict[str, tuple[NodeTable | None, float, tuple[Found, ...]]] = {}
        folder = str(attempt.nodes)
        start, whole = self._turn % len(self._nodes) if self._nodes else 0, not self._sights
        for n, node in enumerate((*self._nodes[start:], *self._nodes[:start])):
            if n and not whole and time.monotonic() > deadline:
                break
            self._turn = start + n + 1
            has = _table(f"{folder}/{node}.beats")
            table, written = has if has is not None and has[0].attempt == attempt.name else (None, 0.0)
            read[node] = table, written, self._found(folder, node)
        return read

    def _found(self, folder: str, node: str) -> tuple[Found, ...]:
        if node not in self._beside:
            return ()
        path = f"{folder}/{node}.jsonl"
        known = self._sights[node].found if node in self._sights else ()
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except OSError:
            return known
        if self._sizes.get(node) == size:
            return known
        self._sizes[node] = size
        return _findings(path)


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return []


def _table(path: str) -> tuple[NodeTable, float] | None:
    """And when it was written. None: gone meanwhile, or caught while it was replaced."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return decode(file.read()), os.fstat(file.fileno()).st_mtime
    except (OSError, BadTable):
        return None


def _findings(path: str) -> tuple[Found, ...]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            tail = file.read()
    except OSError:
        return ()
    return tuple(_records(tail)) if any(word in tail for word in _TELLING) else ()


def _records(tail: bytes) -> Iterator[Found]:
    for text in tail.splitlines():
        try:
            told = json.loads(text)
            yield Found(str(told["kind"]), str(told["verdict"]), str(told["words"]), int(told["launch"]))
        except (ValueError, KeyError, TypeError):
            continue  # cut short, or of another version
