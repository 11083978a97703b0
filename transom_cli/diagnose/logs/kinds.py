"""Kinds of log lines: lines that differ only in numbers and addresses are matched once, since storms repeat them.

A line is of a kind that is known once `ALIKE` lines like it had the same outcome. Alike lines have the same words, the
same ranks and hosts in their labels, and the same numbers wherever a rule looks at numbers (an Xid, an exit code).
Only the lines that a collector keeps are then read in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.matches import Found, Hit
from transom_cli.diagnose.logs.rulebook import NUMBERS, Rulebook, words_of

ALIKE = 8
MOST = 8192  # outcomes that are remembered
_LONGEST = 1000  # bytes of a line
_NONE: tuple[Hit | None, int] = (None, 0)
Line = tuple[int, bytes, bytes, int]
_PLACES = re.compile(rb"([0-9.+-]+)")  # what `words_of` removes
_LABELS = 64  # bytes of a line that hold its labels
_WHO = re.compile(
    rb"(?:[a-zA-Z-]|[Rr]ank #?|[Tt]asks? |\[(?=\d{1,5}[],])|^ {0,6}|\[\d{1,5},|ip=[\d.]{0,16}|^[\d.]{2,12})\d{1,7}"
)  # ranks, tasks, hosts and devices
_PID = re.compile(rb":(\d{1,10}):\d{1,10} \[-?\d{1,4}\] ")  # of NCCL's label


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    """Match one line."""
    record = grammar.record(grammar.clean(found.raw))
    matches = book.matches(record)
    if not matches:
        book.remember_dull(found.raw, record)
        return None
    best = matches[0]
    return Hit(best.rule, record, best.where, lineno=found.lineno, offset=found.offset)


class _Count:
    """Lines of one rule and rank, one after the other. first: one of them, None for lines without a rule. more: how
    many came before the last one, -1 for none at all. place, words: of the last one."""

    __slots__ = ("first", "more", "place", "words")

    def __init__(self, first: Hit | None) -> None:
        self.first, self.more, self.place, self.words = first, -1, 0, b""


class _Kind:
    """Lines with the same words. first: its first line, until a second one shows that there are more. numbers: finds
    those that rules look at; None if none does. outcomes: the first hit of each variant, and how many lines had the
    same outcome. rule: that of all lines so far, `alike` of them. shape: matches a line of this kind once it is known,
    with one group for each number that may matter. counts: by these numbers."""

    __slots__ = ("alike", "counts", "first", "numbers", "outcomes", "rule", "shape")

    def __init__(self, first: bytes, hit: Hit | None) -> None:
        self.first, self.numbers, self.rule, self.alike = first, None, hit and hit.rule, 1
        self.shape: Callable[[bytes], re.Match[bytes] | None] | None = None
        self.counts: dict[tuple[bytes, ...], _Count] = {}
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

    def known(self, variant: tuple[bytes, ...]) -> tuple[bool, Hit | None]:
        """Return whether the outcome of such a line is known, and the first hit."""
        first, count = self.outcomes.get(variant, _NONE)
        same = count > 0 and self.alike >= ALIKE and (first and first.rule) is self.rule
        return count >= ALIKE or same, first

    def learn_shape(self, raw: bytes) -> None:
        """Set `shape`: the words of the line, and at the places of its numbers other ones."""
        used = [one.span() for one in _WHO.finditer(raw[: 2 * _LABELS])]
        used += [one.span(1) for one in _PID.finditer(raw[: 2 * _LABELS])]
        used += [one.span() for one in self.numbers.finditer(raw.rstrip())] if self.numbers is not None else []
        pattern, at = b"", 0
        for part in _PLACES.split(raw):
            end = at + len(part)
            if not _PLACES.match(part):
                pattern += re.escape(part)
            else:
                matters = any(start < end and at < stop for start, stop in used)
                pattern += b"([0-9.+-]+)" if matters else b"[0-9.+-]+"
            at = end
        self.shape = re.compile(pattern).fullmatch

    def add(self, variant: tuple[bytes, ...], hit: Hit | None) -> None:
        """Count an outcome. A variant starts over if its lines differ, and the kind if its variants do."""
        first, count = self.outcomes.get(variant, _NONE)
        rule = hit and hit.rule
        if count and rule is not (first and first.rule):
            count = 0
        self.outcomes[variant] = (first if count else hit), count + 1
        self.rule, self.alike = rule, self.alike + 1 if rule is self.rule else 0


def _last_ones(run: list[_Count], raws: list[bytes], starts: list[int]) -> Iterator[Line]:
    """Yield the last line of each kind in a run of lines that are only counted, in order. Empties the run."""
    last = sorted((count.place, count.more, count.words) for count in run if count.first is not None)
    for count in run:
        count.more = -1
    run.clear()
    for n, more, words in last:
        yield starts[n], raws[n], words, more


class Kinds:
    """The kinds of lines that were seen so far."""

    def __init__(self, book: Rulebook, counts: Callable[[Hit], bool] | None = None) -> None:
        """counts: whether the collector of the hits only counts lines with such a hit, as long as no other comes."""
        self._book, self._counts = book, counts
        self._kinds: dict[bytes, _Kind] = {}
        self._size = 0
        self._of_rank: dict[tuple[object, ...], _Count] = {}

    def lines(self, text: bytes, offset: int, silent: int, most: int) -> Generator[Line, None, tuple[int, int]]:
        """Yield the lines of a text that need a look: offset, line, words, and how many lines like it came before.

        Lines that the collector only counts are left out, except the last one of each kind before the next line that
        needs a look. Lines without a rule's text are left out. At the end, and after more than `most` of these in a
        row, returns the offset of the next line and how many they were.
        """
        raws, alike = text.split(b"\n"), text.translate(None, NUMBERS).split(b"\n")
        starts = list(accumulate((len(raw) + 1 for raw in raws), initial=offset))
        addresses = b"0x" in text or b"::" in text
        run: list[_Count] = []
        for n, raw in enumerate(raws):
            words = words_of(raw) if addresses and (b"0x" in raw or b"::" in raw) else alike[n]
            kind = self._kinds.get(words)
            if kind is None and (not raw or self._book.silent(raw, words)):
                silent += 1 if raw else 0
                if silent > most:
                    yield from _last_ones(run, raws, starts)
                    return starts[n + 1], silent
                continue
            silent = 0
            if kind is not None and kind.shape is not None and (match := kind.shape(raw)):
                count = kind.counts.get(match.groups()) or self._count_of(kind, raw, match.groups())
                if count is not None and count.more >= 0:
                    count.more += 1
                    count.place, count.words = n, words
                    continue
                if count is not None and self._may_count(count.first):
                    count.more, count.place, count.words = 0, n, words
                    run.append(count)
                    continue
            if run:
                yield from _last_ones(run, raws, starts)
            yield starts[n], raw, words, 0
        yield from _last_ones(run, raws, starts)
        return offset + len(text), silent

    def _may_count(self, first: Hit | None) -> bool:
        return first is None or (self._counts is not None and self._counts(first))

    def _count_of(self, kind: _Kind, raw: bytes, numbers: tuple[bytes, ...]) -> _Count | None:
        """Return the count of such lines: of all with one rule and rank. None if what they say is not known yet."""
        known, first = kind.known(kind.variant(raw))
        if not known:
            return None
        if len(kind.counts) > MOST:
            kind.counts = {}
        key: tuple[object, ...] = ()
        if first is not None:
            pid = _PID.search(raw[: 2 * _LABELS])
            of = first.record if pid is None else replace(first.record, pid=pid[1].decode())
            key, first = (first.rule.name, of.rank, of.pid and (of.node, of.device, of.pid)), replace(first, record=of)
        count = kind.counts[numbers] = self._of_rank.setdefault(key, _Count(first))
        return count

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
        known, first = kind.known(variant)
        if not known:
            hit = hit_of(found, self._book)
            kind.add(variant, hit)
            return replace(hit, more=found.more) if hit is not None and found.more else hit
        self._size -= 1
        if kind.shape is None:
            kind.learn_shape(raw)
        if first is None:
            return None
        reread = partial(hit_of, found, self._book)
        return Hit(first.rule, first.record, first.where, "", found.lineno, found.offset, found.more, reread=reread)
