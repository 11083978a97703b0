"""Kinds of log lines: lines that differ only in numbers and addresses are matched once, since storms repeat them.

A line is of a kind that is known once `ALIKE` lines like it had the same outcome. Alike lines have the same words, the
same ranks and hosts in their labels, and the same numbers wherever a rule looks at numbers (an Xid, an exit code).
Only the lines that a collector keeps are then read in full.
"""

from __future__ import annotations

import re
from functools import partial

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.matches import Found, Hit
from transom_cli.diagnose.logs.rulebook import Rulebook, words_of

ALIKE = 8
MOST = 8192  # outcomes that are remembered
_LONGEST = 1000  # bytes of a line
_NONE: tuple[Hit | None, int] = (None, 0)
_LABELS = 64  # bytes of a line that hold its labels
_WHO = re.compile(
    rb"(?:[a-zA-Z-]|[Rr]ank #?|[Tt]asks? |\[(?=\d{1,5}[],])|^ {0,6}|\[\d{1,5},|ip=[\d.]{0,16}|^[\d.]{2,12})\d{1,7}"
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


class _Kind:
    """Lines with the same words. first: its first line, until a second one shows that there are more. numbers: finds
    those that rules look at; None if none does. outcomes: the first hit of each variant, and how many lines had the
    same outcome. rule: that of all lines so far, `alike` of them."""

    __slots__ = ("alike", "first", "numbers", "outcomes", "rule")

    def __init__(self, first: bytes, hit: Hit | None) -> None:
        self.first, self.numbers, self.rule, self.alike = first, None, hit and hit.rule, 1
        self.outcomes: dict[tuple[bytes, ...], tuple[Hit | None, int]] = {(): (hit, 1)}

    def repeats(self, book: Rulebook) -> None:
        """Prepare for more lines of this kind."""
        self.numbers = book.numbers(self.first)
        self.outcomes = {self.variant(self.first): self.outcomes[()]}
        self.first = b""

    def variant(self, raw: bytes) -> tuple[bytes, ...]:
        who = _WHO.findall(raw[:_LABELS])
        if self.numbers is None:
            return (*who, b"")
        return (*who, b"", *[one.group(0) for one in self.numbers.finditer(raw.rstrip())])

    def add(self, variant: tuple[bytes, ...], hit: Hit | None) -> None:
        """Count an outcome. A variant starts over if its lines differ, and the kind if its variants do."""
        first, count = self.outcomes.get(variant, _NONE)
        rule = hit and hit.rule
        if count and rule is not (first and first.rule):
            count = 0
        self.outcomes[variant] = (first if count else hit), count + 1
        self.rule, self.alike = rule, self.alike + 1 if rule is self.rule else 0


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
        words = found.words or words_of(raw)
        kind = self._kinds.get(words)
        self._size += 1
        if kind is None:
            if self._size > MOST:  # a flood of lines that are all different
                self._kinds, self._size = {}, 0
            hit = hit_of(found, self._book)
            self._kinds[words] = _Kind(raw, hit)
            return hit
        if kind.first:
            kind.repeats(self._book)
        variant = kind.variant(raw)
        first, count = kind.outcomes.get(variant, _NONE)
        if count < ALIKE and not (count and kind.alike >= ALIKE and (first and first.rule) is kind.rule):
            hit = hit_of(found, self._book)
            kind.add(variant, hit)
            return hit
        self._size -= 1
        if first is None:
            return None
        reread = partial(hit_of, found, self._book)
        return Hit(first.rule, first.record, first.where, "", found.lineno, found.offset, reread=reread)
