"""Reads a log in a stream: the lines that a rulebook may know, with their numbers. Memory does not grow with the file.

A progress bar's carriage returns end a line here too, but not in the count. Of a line of a megabyte only what is
around the find is taken.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from transom_cli.diagnose.logs.rulebook import Rulebook

BLOCK = 4 << 20
AROUND = 4096  # bytes of an endless line, before and after what was found
_OVERLAP = 1 << 20  # bytes without a line's end that are kept for the next block


@dataclass(frozen=True)
class Found:
    """raw: the line, or its part between carriage returns. lineno: from 1. offset: of the line in the file, bytes."""

    raw: bytes
    lineno: int
    offset: int


def opened(path: Path) -> BinaryIO:
    """Also what was compressed when it was rotated away. OSError as `open`."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def find(file: BinaryIO, book: Rulebook) -> Iterator[Found]:
    """Every line that contains one of the book's texts, in order, once; not those that are dull to it."""
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
        told = book.mark.search(block, at, end)
        if told is None:
            return
        first, last = told.span()
        start, stop = _bounds(block, first, last, end)
        at = max(stop, last)
        raw = block[start:stop]
        if book.dull(raw):
            continue
        lineno += block.count(b"\n", counted, start)
        counted = start
        yield Found(raw, lineno, offset + start)


def _bounds(block: bytes, first: int, last: int, end: int) -> tuple[int, int]:
    """Of the line around a find, or of its part between carriage returns."""
    low, high = max(0, first - AROUND), min(end, last + AROUND)
    start = max(block.rfind(b"\n", low, first), block.rfind(b"\r", low, first))
    stops = [stop for stop in (block.find(b"\n", last, high), block.find(b"\r", last, high)) if stop >= 0]
    return (start + 1 if start >= 0 else low), min(stops, default=high)
