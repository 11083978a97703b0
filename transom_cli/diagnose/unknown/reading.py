"""Logs for the search for what is new: of each file its beginning and its end, line by line, with rank and time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.reading import opened
from transom_cli.diagnose.unknown.novel import New, unrecognised
from transom_cli.diagnose.unknown.tape import Line, Tape
from transom_cli.diagnose.unknown.templates import Templates, mine
from transom_cli.diagnose.unknown.tokens import is_telling

PART = 2 << 20  # bytes of a log's beginning, and as many of its end
NONE = Templates()
ALL = 128 << 20  # bytes of all logs together: a second for some five megabytes


def new_in(paths: Iterable[Path], known: Templates = NONE) -> tuple[New, ...]:
    """What stands near the logs' ends and nowhere before, nor is known from runs that were well."""
    tape = _taped(paths)
    return unrecognised(mine(tape.healthy()).merge(known), tape.near())


def stands_out(paths: Iterable[Path], known: Templates = NONE) -> tuple[New, ...]:
    """As `new_in`, what speaks of something wrong. Nothing where there is nothing to compare with."""
    tape = _taped(paths)
    healthy = tape.healthy()
    found = unrecognised(mine(healthy).merge(known), tape.near()) if healthy or known.templates else ()
    return tuple(new for new in found if is_telling(new.first.text))


def all_of(paths: Iterable[Path]) -> Templates:
    """Of logs of a run that was well: whatever stands in them."""
    return mine(line.text for path in _some(paths) for line in _lines(path))


def _taped(paths: Iterable[Path]) -> Tape:
    tape = Tape()
    for line in itertools.chain.from_iterable(_lines(path) for path in _some(paths)):
        tape.add(line)
    return tape


def _some(paths: Iterable[Path]) -> Iterator[Path]:
    left = ALL
    for path in paths:
        if left > 0:
            left -= min(2 * PART, path.stat().st_size)
            yield path


def _lines(path: Path) -> Iterator[Line]:
    rank, _ = grammar.of_file(str(path))
    with opened(path) as file:
        head = file.read(PART)
        start, tail = len(head), b""
        if path.suffix != ".gz":  # which is only read from its beginning
            start = max(len(head), file.seek(0, 2) - PART)
            file.seek(start)
            tail = file.read(PART)
    yield from _of(head, str(path), 1, rank)
    # a line's number in the part that was passed over is not known, but for what follows without a gap
    yield from _of(tail, str(path), head.count(b"\n") + 1 if start == len(head) else 0, rank)


def _of(data: bytes, name: str, first: int, rank: int | None) -> Iterator[Line]:
    for number, raw in enumerate(data.split(b"\n")):
        told = grammar.record(grammar.cleaned(raw.rpartition(b"\r")[2] or raw))
        if told.line:
            known = told.rank if told.rank is not None else rank
            yield Line(told.text, name, first + number if first else 0, known, told.at)
