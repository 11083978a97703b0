"""Kinds of log lines: lines that differ only in numbers and addresses are matched once, since storms repeat them.

A line is of a kind that is known once `ALIKE` lines like it had the same outcome. Alike lines have the same words, the
same ranks and hosts in their labels, and the same numbers wherever a rule looks at numbers (an Xid, an exit code).
Only the lines that a collector keeps are then read in full.

Lines may also begin alike and end with words of their own (a name, a path): then their stem is a kind, as long as these
words contain nothing that a rule looks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from functools import partial
from operator import itemgetter

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.matches import Found, Hit
from transom_cli.diagnose.logs.rulebook import Expression, Rule, Rulebook, words_of

ALIKE = 8
MOST = 8192  # outcomes that are remembered
_LONGEST = 1000  # bytes of a line
_NONE: tuple[Hit | None, int] = (None, 0)
Line = tuple[int, bytes, int, Hit | None]
_PART = 1 << 16  # bytes that are split into lines at once, so that they stay in a processor's cache
_VARIANTS = 1 << 16
_OWN = 6  # words of a line's own, at its end
_COMMON = 3  # words of a stem, at least
_PRINTABLE = bytes(range(32, 127)) + b"\n"
_START = 24  # bytes of its words
_MASK = bytes.maketrans(b"123456789", b"000000000")
_NUMBER = re.compile(rb"[0-9.+-]+")  # what `words_of` removes
_LABELS = 64  # bytes of a line that hold its labels
_WHO = re.compile(
    rb"(?:[a-zA-Z-]|[Rr]ank #?|[Tt]asks? |\[(?=\d{1,5}[],])|^ {0,6}|\[\d{1,5},|ip=[\d.]{0,16}|^[\d.]{2,12})\d{1,7}"
)  # ranks, tasks, hosts and devices
_PID = re.compile(rb":(\d{1,10}):\d{1,10} \[-?\d{1,4}\] ")  # of NCCL's label


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    """Match one line."""
    record = grammar.record(grammar.clean(found.raw))
    best = book.best(record)
    if best is None:
        book.remember_dull(found.raw, record)
        return None
    return Hit(best.rule, record, best.where, lineno=found.lineno, offset=found.offset)


class _Count:
    """Lines of one rule and rank, one after the other. first: one of them, None for lines without a rule. more: how
    many came before the last one, -1 for none at all. place: offset of the last one."""

    __slots__ = ("first", "more", "place")

    def __init__(self, first: Hit | None) -> None:
        self.first, self.more, self.place = first, -1, 0


class _Form:
    """Lines of a known kind with their numbers at the same places. pick: returns the numbers of a line that may matter.
    counts: by these numbers. stop: where words of a line's own may begin, None if it has none. before: how many bytes
    before these a text may begin that ends among them."""

    __slots__ = ("before", "counts", "kind", "pick", "stop")

    def __init__(self, kind: _Kind, pick: Callable[[bytes], object]) -> None:
        self.kind, self.pick = kind, pick
        self.counts: dict[object, _Count] = {}
        self.stop: int | None = None
        self.before = 0


class _Kind:
    """Lines with the same words. first: its first line, until a second one shows that there are more. numbers: finds
    those that rules look at; None if none does. places: finds where they may be, in a line whose digits are all zeros.
    outcomes: the first hit of each variant, and how many lines had the same outcome. rule: that of all lines so far,
    `alike` of them. words: find what rules look for in the words that follow a stem."""

    __slots__ = ("alike", "first", "numbers", "outcomes", "places", "rule", "words")

    def __init__(self, first: bytes, hit: Hit | None) -> None:
        self.first, self.alike = first, 1
        self.rule: Rule | None = hit.rule if hit is not None else None
        self.numbers: Expression | None = None
        self.places: tuple[Expression, ...] = ()
        self.words: Expression | None = None
        self.outcomes: dict[tuple[bytes, ...], tuple[Hit | None, int]] = {(): (hit, 1)}

    def repeats(self, book: Rulebook) -> None:
        """Prepare for more lines of this kind."""
        self.numbers, self.places = book.numbers(self.first)
        self.outcomes = {self.variant(self.first): self.outcomes[()]}
        self.first = b""

    def variant(self, raw: bytes) -> tuple[bytes, ...]:
        who = [*_WHO.findall(raw[:_LABELS]), *_PID.findall(raw[: 2 * _LABELS])]
        if self.numbers is None:
            return (*who, b"")
        return (*who, b"", *[one.group(0) for one in self.numbers.finditer(raw.rstrip())])

    def known(self, variant: tuple[bytes, ...]) -> tuple[bool, Hit | None]:
        """Return whether the outcome of such a line is known, and the first hit."""
        first, count = self.outcomes.get(variant, _NONE)
        same = count > 0 and self.alike >= ALIKE and (first and first.rule) is self.rule
        return count >= ALIKE or same, first

    def form(self, mask: bytes) -> _Form:
        """Return the form of a line whose digits are zeros in `mask`."""
        used = [one.span() for one in _WHO.finditer(mask[: 2 * _LABELS])]
        used += [one.span(1) for one in _PID.finditer(mask[: 2 * _LABELS])]
        used += [one.span() for places in self.places for one in places.finditer(mask.rstrip())]
        of = [one.span() for one in _NUMBER.finditer(mask)]
        slices = [slice(*span) for span in of if any(start < span[1] and span[0] < stop for start, stop in used)]
        return _Form(self, itemgetter(*(slices or [slice(0)])))

    def add(self, variant: tuple[bytes, ...], hit: Hit | None) -> None:
        """Count an outcome. A variant starts over if its lines differ, and the kind if its variants do."""
        first, count = self.outcomes.get(variant, _NONE)
        rule = hit.rule if hit is not None else None
        if count and rule is not (first and first.rule):
            count = 0
        self.outcomes[variant] = (first if count else hit), count + 1
        self.rule, self.alike = rule, self.alike + 1 if rule is self.rule else 0


class Kinds:
    """The kinds of lines that were seen so far."""

    def __init__(self, book: Rulebook, counts: Callable[[Hit], bool] | None = None) -> None:
        """counts: whether the collector of the hits only counts lines with such a hit, as long as no other comes."""
        self._book, self._counts = book, counts
        self._kinds: dict[bytes, _Kind] = {}
        self._size = 0
        self._forms: dict[bytes, _Form] = {}
        self._stems: dict[bytes, _Kind] = {}  # by their words
        self._stem_forms: dict[bytes, _Form] = {}
        self._stem_helps = False  # with lines of late
        self._before: dict[bytes, bytes] = {}  # the words of the last line without a known kind, by how they begin
        self._variants = 0  # of all forms
        self._of_rank: dict[tuple[object, ...], _Count] = {}

    def lines(self, text: bytes, at: int, end: int, silent: int, most: int) -> Generator[Line, None, tuple[int, int]]:
        """Yield the lines between two offsets that need a look: offset, line, how many like it came before it, and
        the hit of one of them.

        Lines that the collector only counts are left out, except the last one of each kind before the next line that
        needs a look. Lines without a rule's text are left out. At the end, and after more than `most` of these in a
        row, returns the offset of the next line and how many they were.
        """
        forms = self._forms
        run: list[_Count] = []
        while at < end:
            stop = text.find(b"\n", min(at + _PART, end), end) + 1 or end
            masks = text[at:stop].translate(_MASK).split(b"\n")
            of_stem = self._of_stem(text, at, masks) if self._stem_helps else {}
            for mask in masks:
                if at == stop:
                    break  # after the last line's end
                line, at = at, at + len(mask) + 1
                form, count = forms.get(mask) or of_stem.get(line), None
                if form is not None:
                    count = form.counts.get(form.pick(text[line : at - 1]))
                    if count is not None and count.more >= 0:
                        count.more += 1
                        count.place, silent = line, 0
                        continue
                raw = text[line : at - 1]
                if form is None and self._is_silent(raw):
                    silent += 1 if raw else 0
                    if silent <= most:
                        continue
                    yield from _last_ones(run, text)
                    return at, silent
                silent = 0
                form = form or self._form_of(raw, mask)
                if form is not None and count is None:
                    count = self._count_of(form, raw)
                if count is not None and count.more >= 0:
                    count.more, count.place = count.more + 1, line
                elif count is not None and self._may_count(count.first):
                    count.more, count.place = 0, line
                    run.append(count)
                else:
                    yield from _last_ones(run, text)
                    yield line, raw, 0, None
            at = stop
        yield from _last_ones(run, text)
        return end, silent

    def _is_silent(self, raw: bytes) -> bool:
        """Whether no line like this one can have a rule: it contains no text of a rule."""
        if not raw:
            return True
        words = words_of(raw)
        return words not in self._kinds and self._book.silent(raw, words)

    def _may_count(self, first: Hit | None) -> bool:
        return first is None or (self._counts is not None and self._counts(first))

    def _form_of(self, raw: bytes, mask: bytes) -> _Form | None:
        """Return the form of such lines; None if what they say is not known yet."""
        words = words_of(raw)
        kind = self._kinds.get(words)
        if len(raw) > _LONGEST:
            return None
        if kind is not None and not kind.first and kind.known(kind.variant(raw))[0]:
            form = self._forms[mask] = kind.form(mask)
            return form
        for _ in range(_OWN):
            words, raw = words.rpartition(b" ")[0], raw.rpartition(b" ")[0]
            kind = self._stems.get(words)
            if kind is not None and not kind.first and kind.known(kind.variant(raw))[0]:
                mask = mask[: len(raw)]
                if mask not in self._stem_forms:
                    form = self._stem_forms[mask] = kind.form(mask)
                    form.stop, form.before = len(raw), self._book.begun(raw)
                    kind.words = kind.words or self._book.words_after(raw, kind.rule)
                self._stem_helps = True
                return None
        return None

    def _of_stem(self, text: bytes, at: int, masks: list[bytes]) -> dict[int, _Form]:
        """Return the forms of lines that begin like known ones, and whose own words say nothing to a rule."""
        found: dict[_Kind, list[tuple[int, _Form, int]]] = {}
        for mask in masks:
            stem = b"" if mask in self._forms or len(mask) > _LONGEST else mask
            for _ in range(_OWN):
                stem = stem.rpartition(b" ")[0]
                form = self._stem_forms.get(stem)
                if form is not None and not (form.kind.places and b"0" in mask[len(stem) :]):
                    found.setdefault(form.kind, []).append((at, form, at + len(mask)))
                if form is not None or not stem:
                    break
            at += len(mask) + 1
        self._stem_helps = bool(found)
        return {at: form for kind, lines in found.items() for at, form in self._silent_ends(kind, lines, text)}

    def _silent_ends(
        self, kind: _Kind, lines: list[tuple[int, _Form, int]], text: bytes
    ) -> Iterator[tuple[int, _Form]]:
        """Yield the lines that end with words in which no rule finds anything. lines: where they begin and end."""
        own = [text[at + (form.stop or 0) : end] for at, form, end in lines]
        begun = [text[at + (form.stop or 0) - form.before : end] for at, form, end in lines]
        together = b"\n".join(own)
        telling = (
            {together.count(b"\n", 0, one.start()) for one in kind.words.finditer(together)} if kind.words else set()
        )
        if self._book.which(b"\n".join(begun)):
            telling |= {n for n, words in enumerate(begun) if self._book.which(words)}
        if together.translate(None, _PRINTABLE):
            telling |= {n for n, words in enumerate(own) if words.translate(None, _PRINTABLE)}
        yield from ((at, form) for n, (at, form, _) in enumerate(lines) if n not in telling)

    def _count_of(self, form: _Form, raw: bytes) -> _Count | None:
        """Return the count of such lines: of all with one rule and rank. None if what they say is not known yet."""
        known, first = form.kind.known(form.kind.variant(raw[: form.stop]))
        if not known:
            return None
        self._variants += 1
        if self._variants > _VARIANTS:
            self._forms.clear()
            self._stem_forms.clear()
            self._variants = 0
        key: tuple[object, ...] = ()
        if first is not None:
            of = first.record
            key = first.rule.name, of.rank, of.pid and (of.node, of.device, of.pid)
        count = form.counts[form.pick(raw)] = self._of_rank.setdefault(key, _Count(first))
        return count

    def hit_of(self, found: Found) -> Hit | None:
        """Match one line. The record of a hit with `reread` is that of another line of its kind."""
        raw, like = found.raw, found.like
        if like is not None:
            return self._like(like, found)
        if len(raw) > _LONGEST or b"\x1b" in raw:
            return hit_of(found, self._book)
        words = words_of(raw)
        kind = self._kinds.get(words)
        self._size += 1
        if kind is None:
            if self._size > MOST:  # a flood of lines that are all different
                self._kinds, self._size = {}, 0
            hit = hit_of(found, self._book)
            self._kinds[words] = _Kind(raw, hit)
            self._learn_stem(raw, words, hit)
            return hit
        if kind.first:
            kind.repeats(self._book)
        variant = kind.variant(raw)
        known, first = kind.known(variant)
        if not known:
            hit = hit_of(found, self._book)
            kind.add(variant, hit)
            return hit
        self._size -= 1
        return first and self._like(first, found)

    def _learn_stem(self, raw: bytes, words: bytes, hit: Hit | None) -> None:
        """Compare a line with the last one that begins like it. What is common to them may be followed by any words."""
        if len(self._stems) + len(self._before) > MOST:
            self._stems, self._before = {}, {}
        before, self._before[words[:_START]] = self._before.get(words[:_START], b"").split(b" "), words
        now = words.split(b" ")
        same = next((n for n, (one, other) in enumerate(zip(now, before, strict=False)) if one != other), 0)
        if same < _COMMON or len(now) - same > _OWN:
            return
        stem = raw.rsplit(b" ", len(now) - same)[0]
        kind = self._stems.get(b" ".join(now[:same]))
        if kind is None:
            self._stems[b" ".join(now[:same])] = _Kind(stem, hit)
            return
        if kind.first:
            kind.repeats(self._book)
        kind.add(kind.variant(stem), hit)

    def _like(self, first: Hit, found: Found) -> Hit:
        reread = partial(hit_of, found, self._book)
        return Hit(first.rule, first.record, first.where, "", found.lineno, found.offset, found.more, reread=reread)


def _last_ones(run: list[_Count], text: bytes) -> Iterator[Line]:
    """Yield the last line of each count, in order. Empties the run."""
    last = [(one.place, one.more, one.first) for one in run if one.first is not None]
    for one in run:
        one.more = -1
    run.clear()
    for place, more, first in sorted(last, key=itemgetter(0)):
        stop = text.find(b"\n", place)
        yield place, text[place : stop if stop >= 0 else len(text)], more, first
