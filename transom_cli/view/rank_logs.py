"""Merges the rank logs of an attempt into one stream for `transom logs`."""

from __future__ import annotations

import heapq
import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from transom_cli.diagnose.logs.grammar import clean, of_file, record
from transom_cli.heartbeat.table import BadTable, decode
from transom_cli.layout import AttemptDir
from transom_cli.supervise.attempt_files import ExitRecords
from transom_cli.view.text import Line, Span

BUDGET = 64 << 20  # bytes to read of all logs together
LEAST = 64 << 10  # bytes to read of each log
POLL = 0.5  # seconds between two looks at growing logs; network file systems report no changes
_TONES = ("note", "good", "warn", "dim", "strong", "")  # by rank, repeating
_BY_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class LogLine:
    """at: the line's own time, or that of an earlier line (Unix time); 0: unknown. number: order within its log."""

    launch: int
    at: float
    rank: int
    text: str
    number: int


@dataclass
class _Tail:
    """Reads the lines of one log, and later those that were added."""

    path: Path
    launch: int
    rank: int
    offset: int = 0
    at: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)
    cut: int = 0  # bytes at the beginning that were not read

    def lines(self, most: int, *, complete: bool) -> Iterator[LogLine]:
        """Yield new lines. complete: only those that end with a line break."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size - self.offset > most:
                    self.cut += size - most - self.offset
                    self.offset = size - most
                    file.seek(self.offset)
                    self.offset += len(file.readline())  # the rest of a line
                file.seek(self.offset)
                data = file.read(most)
        except OSError:
            return
        if complete:
            data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        for raw in data.splitlines():
            text = clean(raw)
            own = record(text).at
            self.at = max(own or 0.0, self.at)
            yield LogLine(self.launch, self.at, self.rank, text, next(self.numbers))


@dataclass(frozen=True)
class Selection:
    """Which lines to show. ranks: None: all. since: Unix time."""

    ranks: Collection[int] | None = None
    since: float | None = None

    def shows(self, one: LogLine) -> bool:
        """A line without a time, and without one before it, is shown only if no time is requested."""
        return self.since is None or one.at >= self.since


class RankLogs:
    """The logs of all launches of an attempt."""

    def __init__(self, attempt: AttemptDir, selection: Selection) -> None:
        self._attempt, self._selection = attempt, selection
        self._tails: dict[Path, _Tail] = {}

    def read(self, *, complete: bool = False) -> list[LogLine]:
        """Return the lines that were not returned before: by launch, then by time where lines have one."""
        found = self._find()
        most = max(LEAST, BUDGET // max(1, len(found)))
        each = (tail.lines(most, complete=complete) for tail in found)
        merged = heapq.merge(*each, key=lambda one: (one.launch, one.at, one.rank, one.number))
        return [one for one in merged if self._selection.shows(one)]

    @property
    def cut(self) -> int:
        """The number of bytes that were skipped."""
        return sum(tail.cut for tail in self._tails.values())

    @property
    def ranks(self) -> list[int]:
        return sorted({tail.rank for tail in self._tails.values()})

    def _find(self) -> list[_Tail]:
        for path in self._attempt.path.glob("logs/*/*.log"):
            rank, _ = of_file(path.name)
            if path in self._tails or rank is None or not path.parent.name.isdecimal():
                continue
            if self._selection.ranks is None or rank in self._selection.ranks:
                self._tails[path] = _Tail(path, int(path.parent.name), rank)
        return list(self._tails.values())


def drawn(lines: Iterable[LogLine], root: str = "", *, wide: int = 1) -> Iterator[Line]:
    """Yield each line with its rank; `>` marks the line that explains the failure.

    Args:
        root: The root cause line, as the diagnosis found it.
        wide: Digits of the largest rank.
    """
    launch = None
    for one in lines:
        if launch is not None and one.launch != launch:
            yield ((f"--- launch {one.launch}", "strong"),)
        launch = one.launch
        tone = _TONES[one.rank % len(_TONES)]
        is_root = bool(root) and root in one.text
        name: Span = (f"{'>' if is_root else ' '} {one.rank:>{wide}} ", "bad" if is_root else tone)
        yield name, (one.text, "bad" if is_root else "")


def follow(logs: RankLogs, over: Callable[[], bool], show: Callable[[list[LogLine]], None]) -> None:
    """Show new lines until the run is over."""
    while True:
        ended = over()
        new = logs.read(complete=not ended)
        if new:
            show(new)
        if ended:
            return
        time.sleep(POLL)


def ranks_of(attempt: AttemptDir, node: str) -> set[int]:
    """Return the ranks that ran on a node in any launch of the attempt, by exit records and heartbeats."""
    found: set[int] = set()
    for folder in attempt.path.glob("exits/*"):
        found |= {rank for rank, ended in ExitRecords(folder).read().items() if ended.node == node}
    try:
        table = decode((attempt.nodes / f"{node}.beats").read_bytes())
    except (OSError, BadTable):
        return found
    return found | {beat.rank for beat in table.ranks}


def newest_with_logs(attempts: Path) -> AttemptDir | None:
    """Return the newest attempt that has rank logs."""
    try:
        folders = sorted(
            attempts.iterdir(), key=lambda one: [int(n) for n in _BY_NUMBER.findall(one.name)], reverse=True
        )
    except OSError:
        return None
    return next((AttemptDir(one) for one in folders if next(one.glob("logs/*/*.log"), None) is not None), None)
