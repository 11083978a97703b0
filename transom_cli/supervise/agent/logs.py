"""Follows the logs of this node's ranks as they grow, and reads them from their end on request.

slurmstepd writes them on the node itself, so the data comes from the node's own memory. A job of a thousand nodes need
not read a thousand logs over the network from one host.
"""

import contextlib
import io
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from transom_cli.core.log_lines import clean
from transom_cli.diagnose.logs import matches
from transom_cli.diagnose.logs.aftermath import Aftermath
from transom_cli.diagnose.logs.matches import Collector, Hit
from transom_cli.diagnose.logs.reader import Scanner, hits_in
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.trainer_lines import NOTHING, read_lines
from transom_cli.heartbeat import paths, record
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.event_files import EventFiles
from transom_cli.supervise.agent.kernel_kills import KernelKills
from transom_cli.supervise.agent.trainer_progress import TrainerProgress

TAIL = 256 * 1024  # bytes of the end of the batch script's output
HEAD, WHOLE = 256 * 1024, 2 << 20  # bytes of a log's beginning and end that are read for its first cause
PIECE = 64 * 1024  # bytes of a log that are read at once
SECONDS = 3.0  # to read the logs of a node
_GAP = 100_000
LOOK = 64 * 1024  # bytes of one log that are read at a look; of a log that grows faster, the newest
_LINE = 16 * 1024  # bytes; a longer line is given up
_OF_SLURM = re.compile(r"(?:srun|slurmstepd[-\w.]*): ")


@lru_cache(maxsize=1)
def rulebook() -> Rulebook:
    """Return our own rules. Without a TOML reader (Python 3.10 alone, in a user's container) there are none."""
    try:
        from transom_cli.diagnose.logs.rule_files import load
    except ImportError:
        return Rulebook(())
    return Rulebook(load())


def tail_of(path: Path) -> tuple[bytes, int]:
    """Return the log's end from the beginning of a line, and its offset; b"" if the log cannot be read."""
    try:
        with path.open("rb") as f:
            start = max(0, f.seek(0, 2) - TAIL)
            f.seek(start)
            data = f.read(TAIL)
    except OSError:
        return b"", 0
    skipped = data.find(b"\n") + 1 if start else 0
    return data[skipped:], start + skipped


def last_line(data: bytes) -> str:
    """Return the last line that Slurm has not written; without one, Slurm's."""
    lines = (clean(line.decode("utf-8", "replace")) for line in reversed(data[-TAIL:].split(b"\n")))
    first = next((line for line in lines if line), "")
    return first if not _OF_SLURM.match(first) else next((x for x in lines if x and not _OF_SLURM.match(x)), first)


def hits_of_tail(path: Path, data: bytes, start: int) -> list[Hit]:
    """Match the data that begins at `start`. Leaves out what the training survived. Line numbers count from there."""
    return _lasting(hits_in(io.BytesIO(data), rulebook(), path.name, start), path, float("inf"))


@dataclass(frozen=True)
class LogRead:
    """One log. last: its last line. left_out: bytes that were not read."""

    hits: list[Hit]
    last: str
    left_out: int


def read_log(path: Path, seconds: float) -> LogRead:
    """Read a log's beginning and end, in pieces; when `seconds` are over, only its last piece.

    A log that cannot be read counts as empty. Lines behind a gap are numbered as if it had `_GAP` lines.
    """
    until = time.monotonic() + seconds
    collector = Collector(path.name)
    scanner = Scanner(rulebook(), collector)
    lines = left_out = at = 0
    rest = last = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        while at < size:
            if HEAD <= at < size - WHOLE or (at < size - PIECE and time.monotonic() > until):
                goal = size - (PIECE if time.monotonic() > until else WHOLE)
                left_out, at, lines, rest = left_out + goal - at + len(rest), goal, lines + _GAP, b""
            file.seek(at)
            data = file.read(min(PIECE, size - at))
            if not data:
                break
            piece, start = rest + data, at - len(rest)
            at += len(data)
            end = len(piece) if at >= size or len(rest) >= PIECE else piece.rfind(b"\n") + 1
            piece, rest = piece[:end], piece[end:]
            scanner.read(io.BytesIO(piece), lines, start)
            lines += piece.count(b"\n")
            last = piece if piece.strip() else last
    return LogRead(_lasting(collector.drain(), path, until + seconds), last_line(last), left_out)


def _lasting(hits: Sequence[Hit], path: Path, until: float) -> list[Hit]:
    """Leave out what the training survived, as far as there is time to find out."""
    aftermath = Aftermath()

    def survived(hit: Hit) -> bool:
        asked = hit.rule.lasts and matches.worth_reporting(hit) and time.monotonic() < until
        return asked and aftermath.continued(hit, path)

    return [hit for hit in hits if not survived(hit)]


def names(beats_dir: str, launch: int, rows: Sequence[RankBeat]) -> list[str]:
    """Return the logs written on this node: its ranks' (known by their heartbeats), or under torchrun its own."""
    nodes = paths.torchrun_nodes(beats_dir, launch)
    if nodes:
        return [f"node-{n}.log" for n in nodes]
    return [f"rank-{row.rank}.log" for row in rows if row.launch == launch]


def read_cause(
    folder: Path,
    log_names: Sequence[str],
    seconds: float = SECONDS,
    more: Callable[[Sequence[Hit]], Sequence[str]] | None = None,
) -> tuple[dict[str, object], list[Hit]]:
    """Return the answer to `logs`, and the hits. The logs share the time.

    The answer has the names of the logs, their hits (`matches.encode`), the last line of each, and how many bytes of
    which were left out, if any.

    Args:
        more: Given the hits, returns the names of further logs to read.
    """
    until = time.monotonic() + seconds
    hits: list[Hit] = []
    last: dict[str, str] = {}
    left_out: dict[str, int] = {}

    def read(some: Sequence[str]) -> None:
        for number, name in enumerate(some):
            one = read_log(folder / name, (until - time.monotonic()) / (len(some) - number))
            hits.extend(one.hits)
            if one.last:
                last[name] = one.last
            if one.left_out:
                left_out[name] = one.left_out

    read(log_names)
    further = more(hits) if more is not None else ()
    read(further)
    answer = {"names": [*log_names, *further], "hits": matches.encode(hits), "last": last}
    return {**answer, **({"left_out": left_out} if left_out else {})}, hits


class Follower:
    """Follows one log. It starts near the end, so that a restarted agent need not read all of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._at = 0
        self._rest = b""
        self._lines = 0
        self._collector = Collector(path.name)
        self.progress = NOTHING  # what the trainer has logged since the look before

    def look(self) -> tuple[Hit, ...]:
        """Return the causes in lines that are new since the last look. At most `LOOK` bytes are read."""
        self.progress = NOTHING
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            size = os.fstat(self._fd).st_size
            if size == self._at:
                return ()
            if size < self._at or size - self._at > LOOK:  # cut, or grown faster than we read: the newest
                self._at, self._rest = max(0, size - LOOK), b""
                self._lines, self._collector = 0, Collector(self._path.name)
            data = os.pread(self._fd, LOOK, self._at)
        except OSError:
            return ()  # not there yet, or a file system that does not answer: the next look tries again
        self._at += len(data)
        self.progress = read_lines((self._rest + data).decode("utf-8", "replace"))
        return self._take(data)

    def _take(self, data: bytes) -> tuple[Hit, ...]:
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest if len(rest) <= _LINE else b""
        if not end:
            return ()
        Scanner(rulebook(), self._collector).read(io.BytesIO(lines + end), self._lines)
        self._lines += lines.count(b"\n") + 1
        return tuple(filter(matches.worth_reporting, self._collector.drain()))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NodeLogs:
    """Follows the logs of the present launch, and forgets those of earlier launches."""

    def __init__(
        self,
        attempt: AttemptDir,
        beats_dir: str,
        progress: TrainerProgress | None = None,
        kills: KernelKills | None = None,
    ) -> None:
        self._attempt, self._beats_dir, self._kills = attempt, beats_dir, kills
        self._progress = progress or TrainerProgress()
        self.events = EventFiles()
        self._launch = -1
        self._tells = False  # the logs of this launch show its step or its loss
        self._followed: dict[str, Follower] = {}

    def look(self, rows: Sequence[RankBeat]) -> list[tuple[int, Hit]]:
        """Return what is new, by launch. The rank is that of the log, or of the line's own label."""
        if self._kills is not None:
            self._kills.look()
        launch = max((row.launch for row in rows), default=-1)
        if launch != self._launch:
            self.close()
            self._launch, self._tells = launch, False
            rulebook()  # the next to need it are survivors that wait
        found = []
        for name in names(self._beats_dir, launch, rows):
            if name not in self._followed:
                self._followed[name] = Follower(self._attempt.logs(launch) / name)
            found += [(launch, hit) for hit in self._followed[name].look()]
            report = self._followed[name].progress
            self._tells = self._tells or (report.step, report.loss) != (None, None)
            self._progress.see(launch, report, lambda: self._counted(rows))
        for of, report, steps in self.events.take(lambda: self._counted(rows)):
            if of == launch and not self._tells:
                self._progress.see(launch, report, lambda steps=steps: steps)  # type: ignore[misc]
        return found

    def _counted(self, rows: Sequence[RankBeat]) -> int:
        """The optimizer steps that any rank has made. The log was read before: a line is never ahead of this."""
        found = (record.look(f"{self._beats_dir}/rank-{row.rank}") for row in rows)
        return max((one.step for one in found if one is not None and one.since_start), default=-1)

    def cause(self, launch: int, rows: Sequence[RankBeat], seconds: float) -> tuple[dict[str, object], list[Hit]]:
        folder, exits = self._attempt.logs(launch), self._attempt.exits(launch)

        def kills(hits: Sequence[Hit]) -> Sequence[str]:
            return self._kills.write(folder, exits, launch, rows, hits) if self._kills is not None else ()

        return read_cause(folder, names(self._beats_dir, launch, rows), seconds, kills)

    def close(self) -> None:
        for follower in self._followed.values():
            follower.close()
        self._followed = {}
