"""Read logs as a stream and match their lines: memory does not grow with the size of a file.

Carriage returns of a progress bar split a line, but do not count as lines. Of a very long line only the text around a
match is kept. The module also decides whether the training continued after a line, in which case the line was noise or
was handled, and reads torchelastic's error files.

A rank whose entry point is decorated with `@record` writes {"message": {"message": ..., "extraInfo": {"py_callstack":
..., "timestamp": ...}}} to TORCHELASTIC_ERROR_FILE; C++ handlers write {"message": ..., "timestamp": ...}
(torch/distributed/elastic/multiprocessing/errors). Among the files of several ranks, the smallest timestamp is the
root.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.matches import Hit, collect
from transom_cli.diagnose.logs.rulebook import Level, Match, Rulebook

BLOCK = 4 << 20
AROUND = 4096  # bytes kept of a very long line, before and after a match
_OVERLAP = 1 << 20  # bytes without a line end that are kept for the next block


@dataclass(frozen=True)
class Found:
    """raw: the line, or its part between carriage returns. lineno: from 1. offset: of the line in the file, bytes."""

    raw: bytes
    lineno: int
    offset: int


def open_log(path: Path) -> BinaryIO:
    """Open a log, also one compressed by log rotation. Raises OSError like `open`."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def find(file: BinaryIO, book: Rulebook) -> Iterator[Found]:
    """Yield each line that contains one of the rulebook's texts, in order, except those it has learned to ignore."""
    lineno, offset, rest = 1, 0, b""
    while True:
        data = file.read(BLOCK)
        block = rest + data if rest else data
        if not block:
            return
        end = len(block) if not data else block.rfind(b"\n") + 1
        if end == 0:
            end = 0 if len(block) < _OVERLAP else len(block)
        yield from _in_block(block, end, lineno, offset, book)
        lineno += block.count(b"\n", 0, end)
        offset += end
        rest = block[end:]
        if not data:
            return


def _in_block(block: bytes, end: int, lineno: int, offset: int, book: Rulebook) -> Iterator[Found]:
    at = counted = 0
    while at < end:
        told = book.first(block, at, end)
        if told is None:
            return
        first, last = told
        start, stop = _bounds(block, first, last, end)
        at = max(stop, last)
        raw = block[start:stop]
        if book.dull(raw):
            continue
        lineno += block.count(b"\n", counted, start)
        counted = start
        yield Found(raw, lineno, offset + start)


def _bounds(block: bytes, first: int, last: int, end: int) -> tuple[int, int]:
    """Return the bounds of the line around a match, or of its part between carriage returns."""
    low, high = max(0, first - AROUND), min(end, last + AROUND)
    start = max(block.rfind(b"\n", low, first), block.rfind(b"\r", low, first))
    stops = [stop for stop in (block.find(b"\n", last, high), block.find(b"\r", last, high)) if stop >= 0]
    return (start + 1 if start >= 0 else low), min(stops, default=high)


def hits_in_file(path: Path, book: Rulebook, name: str = "") -> tuple[Hit, ...]:
    """Match the lines of one file, reported under `name`. Raises OSError if it cannot be read."""
    with open_log(path) as file:
        return tuple(collect(hits_in(file, book), name or str(path)))


def hits_in(file: BinaryIO, book: Rulebook) -> Iterator[Hit]:
    for found in find(file, book):
        hit = hit_of(found, book)
        if hit is not None:
            yield hit


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    told = grammar.record(grammar.clean(found.raw))
    matches: tuple[Match, ...] = book.matches(told)
    if not matches:
        book.remember_dull(found.raw, told)
        return None
    best = matches[0]
    return Hit(best.rule, told, best.where, lineno=found.lineno, offset=found.offset)


LOOKED_AT = 1 << 20  # bytes read after the line, and before it
ENOUGH = 5  # further progress lines: other ranks' progress bars run on for a moment
_NUMBER = r"[-+]?\d"
_PROGRESS = re.compile(
    rf"(?i)(?:\d ?(?:it|img|images|samples|tokens)/s|\ds/it|\d%\||\bglobal_step\b|\bloss\b\W{{0,6}}{_NUMBER}"
    rf"|\b(?:step|iter|iteration|epoch|batch|episode|timestep|trial|round|generation)s?\b\W{{0,4}}{_NUMBER})".encode()
)
_FINITE = re.compile(rf"(?i)\b\w*(?:loss|ppl|bpb|perplexity)\w*\b\W{{0,6}}{_NUMBER}".encode())
_NOT_FINITE = re.compile(rb"(?i)\b(?:nan|inf)\b")
_DONE = re.compile(  # messages of libraries: a script may print its own after any outcome
    rb"exits successfully|'train_runtime'|`Trainer.fit` stopped: `max_|Out of bounds values : 0 OK"
    rb"|\[after training is done\]"
)

_BETWEEN = (Category.NETWORK_FABRIC, Category.RENDEZVOUS_PORT, Category.NCCL_HANG, Category.EXTERNAL_SERVICE)


def training_continued(hit: Hit, path: Path) -> bool:
    """Whether the line was noise: the training continues after it, or a connection breaks when all is done."""
    try:
        with open_log(path) as file:
            closing = hit.level is Level.SIGN and hit.rule.category in _BETWEEN
            start = max(0, hit.offset - LOOKED_AT) if closing else hit.offset
            file.seek(start)
            before, after = file.read(hit.offset - start), file.read(LOOKED_AT)
    except OSError:
        return False
    if any(re.compile(one.encode()).search(after) for one in hit.rule.over):
        return True
    return _progressed(hit, after) or _DONE.search(before) is not None


def _progressed(hit: Hit, after: bytes) -> bool:
    """Whether at least `ENOUGH` progress lines follow; after a NaN loss, with a finite loss."""
    numeric = hit.rule.category is Category.NUMERIC_DIVERGENCE
    lines = set()
    for raw in after.replace(b"\r", b"\n").split(b"\n")[1:]:
        short = raw[:2000]
        if (_FINITE.search(short) and not _NOT_FINITE.search(short)) if numeric else _PROGRESS.search(short):
            lines.add(short)
            if len(lines) >= ENOUGH:
                return True
    return False


@dataclass(frozen=True)
class ErrorFile:
    """message: the exception's last line. at: wall clock in seconds, or None."""

    message: str
    at: float | None


def parse_error_file(text: str) -> ErrorFile | None:
    """Parse an error file. Returns None if it is another kind of file."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or "message" not in told:
        return None
    message, more = told["message"], told
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
