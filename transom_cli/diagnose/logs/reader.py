"""Read logs as a stream and match their lines: memory does not grow with the size of a file.

Carriage returns of a progress bar split a line, but do not count as lines. Of a very long line only the text around a
match is kept. The module also reads torchelastic's error files.

A rank whose entry point is decorated with `@record` writes {"message": {"message": ..., "extraInfo": {"py_callstack":
..., "timestamp": ...}}} to TORCHELASTIC_ERROR_FILE; C++ handlers write {"message": ..., "timestamp": ...}
(torch/distributed/elastic/multiprocessing/errors). Among the files of several ranks, the smallest timestamp is the
root.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transom_cli.diagnose.logs import rulebook
from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.logs.kinds import Kinds, Line
from transom_cli.diagnose.logs.matches import Collector, Found, Hit
from transom_cli.diagnose.logs.rulebook import Rulebook

BLOCK = 4 << 20
AROUND = 4096  # bytes kept of a very long line, before and after a match
_DENSE, _SPARSE = 8, 32  # lines in a row with a text, and without one
_OVERLAP = 1 << 20  # bytes without a line end that are kept for the next block


def find(file: BinaryIO, book: Rulebook, kinds: Kinds | None = None) -> Iterator[Found]:
    """Yield each line that contains one of the rulebook's texts, in order, except those it has learned to ignore.

    Of the lines that a collector only counts, as `kinds` knows, only the last ones are yielded.
    """
    kinds = kinds or Kinds(book)
    lineno, offset, rest = 1, 0, b""
    while True:
        data = file.read(BLOCK)
        block = rest + data if rest else data
        if not block:
            return
        end = len(block) if not data else block.rfind(b"\n") + 1
        if end == 0:
            end = 0 if len(block) < _OVERLAP else len(block)
        yield from _in_block(block, end, lineno, offset, book, kinds)
        lineno += block.count(b"\n", 0, end)
        offset += end
        rest = block[end:]
        if not data:
            return


def _in_block(block: bytes, end: int, lineno: int, offset: int, book: Rulebook, kinds: Kinds) -> Iterator[Found]:
    """Without RE2, and where line after line contains a text, a search costs more than to look up a line's words."""
    at = silent = 0
    text = b""  # the block without carriage returns
    while at < end:
        if rulebook.FAST and (at == 0 or silent > _SPARSE):
            counted, silent = at, 0
            at = yield from _searched(block, at, end, lineno, offset, book, stop_where_dense=True)
            lineno += block.count(b"\n", counted, at)
        text = text or block.replace(b"\r", b"\n")
        lines = kinds.lines(text, at, end, silent, _SPARSE if rulebook.FAST else end)
        counted, at, silent = at, *(yield from _looked_up(block, lines, lineno, at, offset, book))
        lineno += block.count(b"\n", counted, at)


def _looked_up(
    block: bytes, lines: Generator[Line, None, tuple[int, int]], lineno: int, at: int, offset: int, book: Rulebook
) -> Generator[Found, None, tuple[int, int]]:
    while True:
        try:
            start, raw, more, like = next(lines)
        except StopIteration as stopped:
            end: tuple[int, int] = stopped.value
            return end
        if len(raw) > AROUND:
            lineno, at = lineno + block.count(b"\n", at, start), start
            yield from _searched(block, start, start + len(raw), lineno, offset, book)
        elif like is not None or not book.dull(raw):
            lineno, at = lineno + block.count(b"\n", at, start), start
            yield Found(raw, lineno, offset + start, more, like)


def _searched(
    block: bytes, at: int, end: int, lineno: int, offset: int, book: Rulebook, stop_where_dense: bool = False
) -> Generator[Found, None, int]:
    """Yield the lines with a text between two offsets. Returns up to where it has searched."""
    counted, dense = at, 0
    while at < end:
        span = book.first(block, at, end)
        if span is None:
            return end
        first, last = span
        start, stop = _bounds(block, first, last, end)
        dense = dense + 1 if start - at <= 1 and stop < last + AROUND else 0
        at = max(stop, last)
        raw = block[start:stop]
        if book.dull(raw):
            continue
        lineno += block.count(b"\n", counted, start)
        counted = start
        yield Found(raw, lineno, offset + start)
        if stop_where_dense and dense >= _DENSE:
            return at
    return end


def _bounds(block: bytes, first: int, last: int, end: int) -> tuple[int, int]:
    """Return the bounds of the line around a match, or of its part between carriage returns."""
    low, high = max(0, first - AROUND), min(end, last + AROUND)
    start = max(block.rfind(b"\n", low, first), block.rfind(b"\r", low, first))
    stops = [stop for stop in (block.find(b"\n", last, high), block.find(b"\r", last, high)) if stop >= 0]
    return (start + 1 if start >= 0 else low), min(stops, default=high)


def hits_in_file(path: Path, book: Rulebook, name: str = "") -> tuple[Hit, ...]:
    """Match the lines of one file, reported under `name`. Raises OSError if it cannot be read."""
    with open_log(path) as file:
        collector = Collector(name or str(path))
        collector.take(hits_in(file, book, Kinds(book, collector.counts)))
        return (*collector.drain(), *collector.unfinished())


def hits_in(file: BinaryIO, book: Rulebook, kinds: Kinds | None = None) -> Iterator[Hit]:
    """Match the lines of a file. kinds: those of its earlier parts. Hits with `reread` are for a `Collector`."""
    kinds = kinds or Kinds(book)
    for found in find(file, book, kinds):
        hit = kinds.hit_of(found)
        if hit is not None:
            yield hit


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
