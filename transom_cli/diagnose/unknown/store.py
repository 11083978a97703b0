"""Store templates on disk, and read logs for the search for new lines. Nothing is unpickled.

A run's templates are one plain JSON file of bounded size, readable by its owner only. Of each log the beginning and the
end are read, line by line, with rank and time.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.unknown.novel import Line, New, Tape, find_new
from transom_cli.diagnose.unknown.templates import TEMPLATES, WORDS, Template, Templates, has_error_word, mine
from transom_cli.errors import TransomError
from transom_cli.files import publish_text

SCHEMA = 1
BYTES = 16 * 1024 * 1024  # of one file; larger files are not read
_CLOCK = 1000  # lines between two looks at the clock
_WORD = 200  # characters kept of a word


def save(path: Path, templates: Templates) -> None:
    """Replace the file atomically. Raises OSError. The rarest templates are dropped if there are too many."""
    kept: list[dict[str, Any]] = []
    room = BYTES // 2
    for template in templates.templates[:TEMPLATES]:
        entry = {"count": template.count, "words": [word[:_WORD] for word in template.words]}
        room -= len(json.dumps(entry)) + 2
        if room < 0:
            break
        kept.append(entry)
    document = {"schema": SCHEMA, "lines": templates.lines, "templates": kept}
    publish_text(path, json.dumps(document) + "\n")


def load(path: Path) -> Templates:
    """Return the templates of a run, or none if there is no such file.

    Raises:
        TransomError: the file is not what `save` writes.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > BYTES:
                raise _bad(path, f"it has {size} bytes; the limit is {BYTES}")
            data = file.read(BYTES)
    except FileNotFoundError:
        return Templates()
    try:
        return _templates(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(path, f"{type(error).__name__}: {error}") from error


def _templates(document: dict[str, Any]) -> Templates:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA}")
    found = []
    for entry in document["templates"][:TEMPLATES]:
        count, words = entry["count"], entry["words"]
        if type(count) is not int or count < 0 or not words or not all(type(word) is str for word in words):
            raise ValueError(f"not a template: {str(entry)[:100]}")
        found.append(Template(tuple(words[:WORDS]), count))
    if type(document["lines"]) is not int:
        raise ValueError("its number of lines is not a number")
    return Templates(tuple(found), document["lines"])


def _bad(path: Path, why: str) -> TransomError:
    return TransomError(
        f"`{path}` does not contain a run's templates", why, f"Remove it; it is only used for comparison: rm {path}"
    )


PART = 2 << 20  # bytes of a log's beginning, and of its end
NONE = Templates()
ALL = 128 << 20  # bytes of all logs together; five megabytes take about a second


def new_lines(paths: Iterable[Path], known: Templates = NONE) -> tuple[New, ...]:
    """Return the new kinds of lines near the logs' ends: not before, nor in healthy runs."""
    tape = _taped(paths)
    return find_new(mine(tape.healthy()).merge(known), tape.near())


def new_errors(paths: Iterable[Path], known: Templates = NONE, until: float = float("inf")) -> tuple[New, ...]:
    """Return the new kinds of lines that report an error. Empty if there is nothing to compare with.

    until: on the monotonic clock; logs that were not read by then are left out.
    """
    tape = _taped(paths, until)
    healthy = tape.healthy()
    found = find_new(mine(healthy).merge(known), tape.near()) if healthy or known.templates else ()
    return tuple(new for new in found if has_error_word(new.first.text))


def mine_logs(paths: Iterable[Path]) -> Templates:
    """Return the templates of the logs of a healthy run."""
    return mine(line.text for path in _some(paths) for line in _lines(path))


def _taped(paths: Iterable[Path], until: float = float("inf")) -> Tape:
    tape = Tape()
    for path in _some(paths):
        for number, line in enumerate(_lines(path)):
            if not number % _CLOCK and time.monotonic() > until:
                tape.forget(str(path))
                return tape
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
    with open_log(path) as file:
        head = file.read(PART)
        start, tail = len(head), b""
        if path.suffix != ".gz":  # which is read from its beginning only
            start = max(len(head), file.seek(0, 2) - PART)
            file.seek(start)
            tail = file.read(PART)
    yield from _of(head, str(path), 1, rank)
    # line numbers after the skipped part are unknown, except in what follows without a gap
    yield from _of(tail, str(path), head.count(b"\n") + 1 if start == len(head) else 0, rank)


def _of(data: bytes, name: str, first: int, rank: int | None) -> Iterator[Line]:
    for number, raw in enumerate(data.split(b"\n")):
        record = grammar.record(grammar.clean(raw.rpartition(b"\r")[2] or raw))
        if record.line:
            known = record.rank if record.rank is not None else rank
            yield Line(record.text, name, first + number if first else 0, known, record.at)
