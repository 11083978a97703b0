"""What a log tells by the rules: the lines that count, each with its rule, rank, node and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.collector import collected
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.reading import Found, find, opened
from transom_cli.diagnose.logs.rulebook import Match, Rulebook


def hits_of(path: Path, book: Rulebook, name: str = "") -> tuple[Hit, ...]:
    """Of one file; `name` is what it is called in the answer. OSError where it cannot be read."""
    with opened(path) as file:
        return tuple(collected(hits_in(file, book), name or str(path)))


def hits_in(file: BinaryIO, book: Rulebook) -> Iterator[Hit]:
    for found in find(file, book):
        hit = hit_of(found, book)
        if hit is not None:
            yield hit


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    told = grammar.record(grammar.cleaned(found.raw))
    matches: tuple[Match, ...] = book.matches(told)
    if not matches:
        book.remember_dull(found.raw, told)
        return None
    best = matches[0]
    return Hit(best.rule, told, best.where, lineno=found.lineno, offset=found.offset)
