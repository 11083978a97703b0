"""The logs of this node's ranks: followed as they grow, and read from their end when somebody asks.

slurmstepd writes them on the node itself, so that what is read here comes from the node's own memory, and a job of a
thousand nodes does not read a thousand logs over the network from one host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from transom_cli.beats import places
from transom_cli.beats.table import RankBeat
from transom_cli.core import logedges
from transom_cli.core.logedges import Edge, LogState
from transom_cli.core.rootline import RootLine, first_cause, root_line
from transom_cli.layout import AttemptDir

TAIL = 256 * 1024  # bytes of a log's end that are read for its first cause
LOOK = 64 * 1024  # bytes of one log that are read at a look; of a log that grows faster, the newest
_LINE = 16 * 1024  # a line that goes on for longer, without an end, is given up

_RANK = re.compile(r"rank-(\d{1,9})\.log")


def tail_of(path: Path) -> str:
    try:
        with path.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - TAIL))
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


def names(beats_dir: str, launch: int, rows: Sequence[RankBeat]) -> list[str]:
    """Of the logs that are written on this node: its ranks' (by their beats), or under torchrun its own."""
    nodes = places.torchrun_nodes(beats_dir, launch)
    if nodes:
        return [f"node-{n}.log" for n in nodes]
    return [f"rank-{row.rank}.log" for row in rows if row.launch == launch]


def read_cause(folder: Path, log_names: Sequence[str], rank: int | None) -> dict[str, object]:
    """What `logs` answers: the names that were read, and of them category, line and where (see `first_cause`)."""
    said = []
    for name in log_names:
        text = tail_of(folder / name)
        if text.strip():
            said.append((root_line(text), name))
    told = first_cause(said, rank)
    answer: dict[str, object] = {"names": list(log_names)}
    if told is not None:
        answer.update(category=told[0].category, line=told[0].line, where=told[1])
    return answer


class Follower:
    """One log. It starts near the end of what is there: an agent that is started again must not read it all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._at = 0
        self._rest = b""
        self._state = LogState()

    def look(self) -> tuple[Edge, ...]:
        """What the lines tell that have come since the last look. At most `LOOK` bytes are read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            size = os.fstat(self._fd).st_size
            if size == self._at:
                return ()
            if size < self._at or size - self._at > LOOK:  # cut, or grown faster than we read: the newest
                self._at, self._rest = max(0, size - LOOK), b""
            data = os.pread(self._fd, LOOK, self._at)
        except OSError:
            return ()  # not there yet, or a file system that does not answer: the next look tries again
        self._at += len(data)
        return self._take(data)

    def _take(self, data: bytes) -> tuple[Edge, ...]:
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest if len(rest) <= _LINE else b""
        if not end or (self._state.idle and not any(mark in lines for mark in logedges.MARKS)):
            return ()
        text = lines.decode("utf-8", "replace").split("\n")
        self._state, found = logedges.watch(self._state, text)
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NodeLogs:
    """Follows the logs of the present launch; those of a launch before it are let go."""

    def __init__(self, attempt: AttemptDir, beats_dir: str) -> None:
        self._attempt, self._beats_dir = attempt, beats_dir
        self._launch = -1
        self._followed: dict[str, Follower] = {}

    def look(self, rows: Sequence[RankBeat]) -> list[tuple[int, int | None, RootLine]]:
        """What is new, as (launch, rank, what was found). rank: None where neither log nor line names one."""
        launch = max((row.launch for row in rows), default=-1)
        if launch != self._launch:
            self.close()
            self._launch = launch
        found = []
        for name in names(self._beats_dir, launch, rows):
            if name not in self._followed:
                self._followed[name] = Follower(self._attempt.logs(launch) / name)
            for edge in self._followed[name].look():
                found.append((launch, edge.rank if edge.rank is not None else _rank(name), edge.told))
        return found

    def cause(self, launch: int, rank: int | None, rows: Sequence[RankBeat]) -> dict[str, object]:
        return read_cause(self._attempt.logs(launch), names(self._beats_dir, launch, rows), rank)

    def close(self) -> None:
        for follower in self._followed.values():
            follower.close()
        self._followed = {}


def _rank(name: str) -> int | None:
    found = _RANK.match(name)
    return int(found[1]) if found else None
