"""Read logs as a stream and match their lines: memory does not grow with the size of a file.

Carriage returns of a progress bar split a line, but do not count as lines. Of a very long line only the text around a
match is kept. The module also reads torchelastic's error files.

A rank whose entry point is decorated with `@record` writes {"message": {"message": ..., "extraInfo": {"py_callstack":
..., "timestamp": ...}}} to TORCHELASTIC_ERROR_FILE; C++ handlers write {"message": ..., "timestamp": ...}
(torch/distributed/elastic/multiprocessing/errors). Among the files of several ranks, the smallest timestamp is the
root.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.logs.kinds import Form, Kinds, hit_of
from transom_cli.diagnose.logs.masks import words_of
from transom_cli.diagnose.logs.matches import Collector, Found, Hit
from transom_cli.diagnose.logs.rulebook import SHORT, Rulebook

BLOCK = 4 << 20
AROUND = 4096  # bytes kept of a very long line, before and after a match
_PART = 1 << 16  # bytes that are split into lines at once, so that they stay in a processor's cache
_FEW, _MANY = 32, 64  # lines with a text in a part: up to which, and from which, the other way to read is faster
_LONG = 512  # kinds of long lines that are remembered
_OVERLAP = 1 << 20  # bytes without a line end that are kept for the next block


class Scanner:
    """Reads one log, at once or in pieces, and passes the hits of its lines to a collector."""

    def __init__(self, book: Rulebook, collector: Collector) -> None:
        self._book, self._collector = book, collector
        self._kinds = Kinds(book, self._like)
        self._dense = not book.searches
        self._dull: set[bytes] = set()  # words of long lines that no rule matches
        self._block = b""
        self._start = 0  # bytes before the block
        self._at, self._lineno = 0, 1  # an offset in the block, and the number of the line there

    def read(self, file: BinaryIO, lines: int = 0, start: int = 0) -> None:
        """Read a file to its end. lines, start: how many lines and bytes of the log are before it."""
        rest = b""
        self._lineno, self._start = lines + 1, start
        while True:
            data = file.read(BLOCK)
            self._block, self._at = (rest + data if rest else data), 0
            end = len(self._block) if not data else self._block.rfind(b"\n") + 1
            if end == 0 and len(self._block) >= _OVERLAP:
                end = len(self._block)
            self._scan(end)
            self._collector.read_last()
            if not data:
                return
            self._number(end)
            self._start, rest = self._start + end, self._block[end:]

    def _scan(self, end: int) -> None:
        """Read the block up to an offset. Where line after line contains a text, a search costs more than to look up
        each line; so does any search without RE2."""
        at = 0
        while at < end:
            stop = self._block.find(b"\n", min(at + _PART, end), end) + 1 or end
            if self._dense:
                found = self._look_up(at, stop)
                self._book.looked_up += stop - at
                self._dense = found > _FEW or not self._book.searches
            else:
                found = self._search(at, stop)
                self._dense = found > _MANY
            at = stop

    def _look_up(self, at: int, end: int) -> int:
        """Read the lines between two offsets. Returns how many contain a text."""
        part, lineno = self._block[at:end], self._number(at)
        returns = part.count(b"\r") if b"\r" in part else 0
        part = part.replace(b"\r", b"\n")
        lines, silent = part.split(b"\n"), self._kinds.silent
        before = silent.lines
        for form, raw in zip(self._kinds.forms(part, lines), lines, strict=True):
            line, at = at, at + len(raw) + 1
            if form is not None:
                tally = form.tallies.get(form.pick(raw))
                if tally is not None and tally.open:
                    tally.lines += 1
                    tally.at = line
                    continue
            if len(raw) > SHORT:
                self._search(line, line + len(raw))
            else:
                self._look(raw, line, form)
        self._at, self._lineno = end, lineno + len(lines) - 1 - returns
        return len(lines) - (silent.lines - before)

    def _search(self, at: int, end: int) -> int:
        """Look at the lines with a text between two offsets. Returns how many they are."""
        found = 0
        while at < end:
            span = self._book.first(self._block, at, end)
            if span is None:
                break
            start, stop = self._bounds(*span, end)
            raw, at, found = self._block[start:stop], max(stop, span[1]), found + 1
            if not (self._dull and len(raw) > SHORT and words_of(raw) in self._dull):
                self._look(raw, start, None)
        return found

    def _look(self, raw: bytes, at: int, form: Form | None) -> None:
        """Count a line, or pass its hit to the collector."""
        if form is None and len(raw) <= SHORT:
            form = self._kinds.form(raw)
        tally, first = self._kinds.tally(form, raw) if form is not None else (None, None)
        if tally is not None and (tally.open or self._collector.opens(tally)):
            tally.lines, tally.at = tally.lines + 1, at
            return
        found = Found(raw, self._number(at), self._start + at)
        if first is not None:
            self._collector.take(self._kinds.like(first, found))
            return
        hit = hit_of(found, self._book)
        if form is not None:
            self._kinds.add(form, raw, hit)
        if hit is not None:
            self._collector.take(hit)
        elif len(raw) > SHORT and len(self._dull) < _LONG and self._book.is_blind(raw):
            self._dull.add(words_of(raw))

    def _like(self, first: Hit, at: int) -> Hit:
        """Return the hit of the line at an offset, which is like another one."""
        start, stop = self._bounds(at, at, len(self._block))
        return self._kinds.like(first, Found(self._block[start:stop], self._number(at), self._start + at))

    def _bounds(self, first: int, last: int, end: int) -> tuple[int, int]:
        """Return the bounds of the line around a match, or of its part between carriage returns."""
        block, low, high = self._block, max(0, first - AROUND), min(end, last + AROUND)
        start = max(block.rfind(b"\n", low, first), block.rfind(b"\r", low, first))
        stops = [stop for stop in (block.find(b"\n", last, high), block.find(b"\r", last, high)) if stop >= 0]
        return (start + 1 if start >= 0 else low), min(stops, default=high)

    def _number(self, at: int) -> int:
        """Return the number of the line at an offset. Counts from the last one, in either direction."""
        count = self._block.count
        self._lineno += count(b"\n", self._at, at) if at >= self._at else -count(b"\n", at, self._at)
        self._at = at
        return self._lineno


def hits_in(file: BinaryIO, book: Rulebook, name: str = "", start: int = 0) -> list[Hit]:
    """Match the lines of a file, reported under `name`. start: bytes of the log that are before it."""
    collector = Collector(name)
    Scanner(book, collector).read(file, start=start)
    return [*collector.drain(), *collector.unfinished()]


def hits_in_file(path: Path, book: Rulebook, name: str = "") -> list[Hit]:
    """Match the lines of a log, reported under `name`. Raises OSError if it cannot be read."""
    with open_log(path) as file:
        return hits_in(file, book, name or str(path))


@dataclass(frozen=True)
class ErrorFile:
    """message: the exception's last line. at: wall clock in seconds, or None."""

    message: str
    at: float | None


def parse_error_file(text: str) -> ErrorFile | None:
    """Parse an error file. Returns None if it is another kind of file."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or "message" not in document:
        return None
    message, more = document["message"], document
    if isinstance(message, dict):
        more = message.get("extraInfo") or message
        message = message.get("message")
    if not isinstance(message, str) or not isinstance(more, dict):
        return None
    return ErrorFile(message, _seconds(more.get("timestamp")))


def _seconds(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None
