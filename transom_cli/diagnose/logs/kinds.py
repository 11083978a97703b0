"""Kinds of log lines: lines that differ only in numbers and addresses are matched once, since storms repeat them.

A line is of a kind that is known once `ALIKE` lines like it had the same outcome. Alike lines have the same words, the
same ranks and hosts in their labels, and the same numbers wherever a rule looks at numbers (an Xid, an exit code).
Only the lines that a collector keeps are then read in full.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.matches import Found, Hit
from transom_cli.diagnose.logs.rulebook import Expression, Rulebook, words_of

ALIKE = 8
MOST = 8192  # outcomes that are remembered
_LONGEST = 1000  # bytes of a line
_LABELS = 64  # bytes of a line that hold its labels
_WHO = re.compile(
    rb"(?:[a-zA-Z-]|[Rr]ank |[Tt]asks? |\[(?=\d{1,5}[],])|^ {0,6}|\[\d{1,5},|ip=[\d.]{0,16}|^[\d.]{2,12})\d{1,7}"
)  # ranks, tasks, hosts and devices


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    """Match one line."""
    record = grammar.record(grammar.clean(found.raw))
    matches = book.matches(record)
    if not matches:
        book.remember_dull(found.raw, record)
        return None
    best = matches[0]
    return Hit(best.rule, record, best.where, lineno=found.lineno, offset=found.offset)


@dataclass
class _Kind:
    """numbers: finds the numbers that rules look at; None if none does. outcomes: the first hit of each variant, how
    many lines had the same outcome."""

    numbers: Expression | None
    outcomes: dict[tuple[bytes, ...], tuple[Hit | None, int]] = field(default_factory=dict)


class Kinds:
    """The kinds of lines that were seen so far."""

    def __init__(self, book: Rulebook) -> None:
        self._book = book
        self._kinds: dict[bytes, _Kind] = {}
        self._size = 0

    def hit_of(self, found: Found) -> Hit | None:
        """Match one line. The record of a hit with `reread` is that of another line of its kind."""
        raw = found.raw
        if len(raw) > _LONGEST or b"\x1b" in raw:
            return hit_of(found, self._book)
        words = words_of(raw)
        kind = self._kinds.get(words)
        if kind is None:
            kind = self._kinds[words] = _Kind(self._book.numbers(raw))
        numbers = kind.numbers.finditer(raw.rstrip()) if kind.numbers is not None else ()
        variant = (*_WHO.findall(raw[:_LABELS]), b"", *(one.group(0) for one in numbers))
        first, count = kind.outcomes.get(variant, (None, 0))
        if count >= ALIKE:
            if first is None:
                return None
            reread = partial(hit_of, found, self._book)
            return Hit(first.rule, first.record, first.where, "", found.lineno, found.offset, reread=reread)
        hit = hit_of(found, self._book)
        if count and (hit and hit.rule) is not (first and first.rule):
            count = 0
        self._size += variant not in kind.outcomes
        kind.outcomes[variant] = (first if count else hit), count + 1
        if self._size > MOST:  # a flood of lines that are all different
            self._kinds, self._size = {}, 0
        return hit
