"""Kinds of log lines: lines that differ only in what says nothing to a rule are matched once, since storms repeat them.

A line is of a kind that is known once `ALIKE` lines like it had the same outcome. Alike lines have the same words, the
same ranks, hosts and processes in their labels, and the same numbers wherever a rule looks at numbers (an Xid, an exit
code). In a log with many new lines, words that say nothing to a rule (a file's name) may differ: they are masked.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import cast

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.masks import WordMasks, masked, words_like, words_of
from transom_cli.diagnose.logs.matches import Found, Hit, Tally
from transom_cli.diagnose.logs.rulebook import Expression, Rule, Rulebook

ALIKE = 8
MOST = 8192  # kinds, and outcomes, that are remembered
_FORMS = 1 << 16
_OWN = 16  # forms of one length in which own words are looked for first
_NEW = 128  # new kinds in a part of a log after which words are masked
_NUMBER = lazy_re(rb"[0-9.+-]+")
_VARIES = lazy_re(rb"[0xX]")  # in a mask


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    """Match one line."""
    record = grammar.record(grammar.clean(found.raw))
    best = book.best(record)
    if best is None:
        return None
    return Hit(best.rule, record, best.where, lineno=found.lineno, offset=found.offset)


def _hit_like(rule: Rule, found: Found, book: Rulebook) -> Hit:
    """Match a line whose rule is known."""
    record = grammar.record(grammar.clean(found.raw))
    return Hit(rule, record, book.where(rule, record), lineno=found.lineno, offset=found.offset)


def _outcome(hit: Hit | None) -> object:
    """Return what lines that are only counted have in common."""
    return hit and (hit.rule.name, replace(hit.record, line="", text="", at=None))


def _is_plain(raw: bytes) -> bool:
    """Whether a line stays as long as it is when it is cleaned."""
    try:
        return raw.decode().replace("\t", " ").isprintable()
    except UnicodeDecodeError:
        return False


class Kind:
    """Lines with the same words. places: find the numbers that rules look at, in a mask; None until a second line shows
    that there are more. outcomes: the first hit of each variant, and how many lines had the same outcome. rule: that of
    all lines so far, `alike` of them."""

    __slots__ = ("alike", "outcomes", "places", "rule")

    def __init__(self) -> None:
        self.alike = 0
        self.rule: Rule | None = None
        self.places: tuple[Expression, ...] | None = None
        self.outcomes: dict[object, tuple[Hit | None, int]] = {}

    def known(self, variant: object) -> tuple[bool, Hit | None]:
        """Return whether the outcome of such a line is known, and the first hit."""
        first, count = self.outcomes.get(variant, (None, 0))
        same = count > 0 and self.alike >= ALIKE and (first and first.rule) is self.rule
        return count >= ALIKE or same, first

    def add(self, variant: object, hit: Hit | None) -> None:
        """Count an outcome. A variant starts over if its lines differ, and the kind if its variants do."""
        first, count = self.outcomes.get(variant, (None, 0))
        rule = hit.rule if hit is not None else None
        if count and rule is not (first and first.rule):
            count = 0
        self.outcomes[variant] = (first if count else hit), count + 1
        self.rule, self.alike = rule, self.alike + 1 if rule is self.rule else 0


class Form:
    """Lines with one mask. pick: returns what of a line may matter. tallies: by what it returns."""

    __slots__ = ("kind", "pick", "tallies")

    def __init__(self, kind: Kind, pick: Callable[[bytes], object]) -> None:
        self.kind, self.pick = kind, pick
        self.tallies: dict[object, Tally] = {}


class _Own:
    """Where lines of a form have words of their own. whole: their mask, if all words that say nothing are masked.
    words: matches what is there, from `start` to `stop` of a line. head, tail: what is before and after it."""

    __slots__ = ("_first", "form", "head", "start", "stop", "tail", "whole", "words")

    def __init__(self, form: Form, first: bytes, whole: bytes) -> None:
        self.form, self._first, self.whole = form, first, whole
        self.start, self.stop = len(first), 0
        self.head = self.tail = first
        self.words = words_like(b"", b"")

    def learn(self, line: bytes) -> None:
        """Learn from the mask of another line."""
        other = [n for n, (one, two) in enumerate(zip(self._first, line, strict=True)) if one != two]
        if other:
            end = self._first.find(b" ", other[-1])
            self.start = min(self.start, self._first.rfind(b" ", 0, other[0]) + 1)
            self.stop = max(self.stop, end if end >= 0 else len(line))
            self.head, self.tail = self._first[: self.start], self._first[self.stop :]
            self.words = words_like(self._first[self.start : self.stop], self.whole[self.start : self.stop])


class Kinds:
    """The kinds of lines in one log."""

    def __init__(self, book: Rulebook, read: Callable[[Hit, int], Hit]) -> None:
        """read: returns the hit of a line at an offset, which is like the given one."""
        self._book, self._read = book, read
        self._kinds: dict[bytes, Kind] = {}
        self._size = 0  # of all kinds
        self._forms: dict[bytes, Form] = {}
        self._tallies: dict[object, Tally] = {}
        self._variants = 0  # of all forms
        self._new, self._wait = 0, _NEW  # new kinds since the last call of `forms`, and after how many words are masked
        self._candidates: set[int] = set()  # rules that have a text in a line of a kind
        self._word_masks: WordMasks | None = None
        self._whole: dict[bytes, bytes] = {}  # masks of the lines of a part, with words masked
        self._own: dict[int, list[_Own]] = {}  # by length
        self._silent_words: set[bytes] = set()
        self.silent, self._dull = Tally(None, read), Tally(None, read)  # lines without a text, and without a rule
        self._silent = Form(Kind(), itemgetter(slice(0)))
        self._silent.tallies[b""] = self.silent

    def forms(self, part: bytes, lines: list[bytes]) -> list[Form | None]:
        """Return the form of each line of a part of the log, as far as it is known."""
        masks = masked(part).split(b"\n")
        found = list(map(self._forms.get, masks))
        self._new = self._new if self._new >= self._wait else 0
        if self._new and None in found:
            missing = [n for n, form in enumerate(found) if form is None]
            self._with_own_words(masks, lines, found, missing)
            missing = [n for n in missing if found[n] is None]
            whole = self._mask_words([masks[n] for n in missing])
            self._whole = {masks[n]: mask for n, mask in zip(missing, whole, strict=True)}
            for n, mask in zip(missing, whole, strict=True):
                found[n] = form = self._forms.get(mask)
                if form is not None:
                    self._forms[masks[n]] = form
                    self._learn_own(form, masks[n], mask)
        return found

    def _with_own_words(
        self, masks: list[bytes], lines: list[bytes], found: list[Form | None], missing: list[int]
    ) -> None:
        """Find the forms of lines that have words of their own only where others of their form have them, too."""
        words: list[tuple[int, tuple[bytes, ...]]] = []
        for n in missing:
            mask = masks[n]
            for one in self._own.get(len(mask), ()):
                if mask.startswith(one.head) and mask.endswith(one.tail):
                    match = one.words.fullmatch(mask, one.start, one.stop)
                    if match is not None:
                        found[n] = one.form
                        words.append((n, match.groups()))
                        break
        telling = self._words().telling([word for _, own in words for word in own])
        if telling:
            for n, own in words:
                if not telling.isdisjoint(own) and not self._is_like(cast(Form, found[n]), lines[n]):
                    found[n] = None

    def _is_like(self, form: Form, raw: bytes) -> bool:
        """Whether a line with a word that tells still has the outcome of the form's lines."""
        if form is self._silent:
            return self._book.says_nothing(raw)
        first, count = form.kind.outcomes.get(form.pick(raw), (None, 0))
        return count > 0 and _outcome(hit_of(Found(raw, 0, 0), self._book)) == _outcome(first)

    def _learn_own(self, form: Form, line: bytes, mask: bytes) -> None:
        of = self._own.setdefault(len(line), [])
        known = next((one for one in of if one.whole == mask), None)
        if known is not None:
            known.learn(line)
        elif len(of) < _OWN:
            of.append(_Own(form, line, mask))

    def form(self, raw: bytes) -> Form | None:
        """Return the form of a short line; None if its kind is new."""
        mask = masked(raw)
        form = self._forms.get(mask)
        if form is None and self._new >= self._wait:
            mask = self._whole.get(mask) or self._mask_words([mask])[0]
            form = self._forms.get(mask)
        return form or self._new_form(raw, mask)

    def _new_form(self, raw: bytes, mask: bytes) -> Form | None:
        if len(self._forms) > _FORMS:
            self._forget_forms()
        if not _is_plain(raw):
            return self._silent if self._book.says_nothing(raw) else None
        words = words_of(mask)
        kind = self._kinds.get(words)
        if kind is not None:
            form = self._forms[mask] = Form(kind, self._pick(kind, raw, mask))
            return form
        if words in self._silent_words and not self._book.is_numbered(mask):
            self._forms[mask] = self._silent
            return self._silent
        if self._book.says_nothing(raw):
            self._silent_words.add(words)
            return self._silent
        self._grow(raw)
        self._new += 1
        self._kinds[words] = Kind()
        return None

    def _words(self) -> WordMasks:
        if self._word_masks is None:
            self._word_masks = self._book.word_masks(self._candidates)
        return self._word_masks

    def _mask_words(self, masks: list[bytes]) -> list[bytes]:
        return self._words().of(b"\n".join(masks)).split(b"\n") if masks else []

    def _pick(self, kind: Kind, raw: bytes, mask: bytes) -> Callable[[bytes], object]:
        if kind.places is None:
            kind.places = self._book.places(raw)
        line = grammar.clean(raw)
        spans = [(len(line[:start].encode()), len(line[:stop].encode())) for start, stop in grammar.who(line)]
        used = [one.span() for places in kind.places for one in places.finditer(mask.rstrip())]
        numbers = [one.span() for one in _NUMBER.finditer(mask)]
        spans += [span for span in numbers if any(start < span[1] and span[0] < stop for start, stop in used)]
        slices: list[slice] = []
        for start, stop in sorted(spans):
            if slices and not _VARIES.search(mask, slices[-1].stop, start):
                slices[-1] = slice(slices[-1].start, max(stop, slices[-1].stop))
            else:
                slices.append(slice(start, stop))
        return itemgetter(*(slices or [slice(0)]))

    def _grow(self, raw: bytes) -> None:
        if not self._candidates.issuperset(of := self._book.candidates(raw)):
            self._candidates |= of
            if self._word_masks is not None:  # to prepare them again takes as long as to match some hundred lines
                self._word_masks, self._whole, self._own, self._new, self._wait = None, {}, {}, 0, 2 * _NEW
        self._size += 1
        if self._size > MOST:  # a flood of lines that are all different
            self._kinds, self._silent_words, self._size = {}, set(), 0
            self._forget_forms()

    def _forget_forms(self) -> None:
        self._forms, self._own, self._tallies, self._variants = {}, {}, {}, 0

    def add(self, form: Form, raw: bytes, hit: Hit | None) -> None:
        """Learn what a line says."""
        self._grow(raw)
        form.kind.add(form.pick(raw), hit)

    def tally(self, form: Form, raw: bytes) -> tuple[Tally | None, Hit | None]:
        """Return the tally of such lines, of all with one rule, rank and process, and the first hit of their kind. Both
        are None if they are not known."""
        pick = form.pick(raw)
        tally, (known, first) = form.tallies.get(pick), form.kind.known(pick)
        if tally is None and known:
            tally = form.tallies[pick] = self._tally_of(first)
        return tally, first if known else None

    def _tally_of(self, first: Hit | None) -> Tally:
        self._variants += 1
        if self._variants > _FORMS:
            self._forget_forms()
        if first is None:
            return self._dull
        of = first.record
        key = first.rule.name, of.rank, of.pid and (of.node, of.device, of.pid)
        return self._tallies.setdefault(key, Tally(first, self._read))

    def like(self, first: Hit, found: Found) -> Hit:
        """Return the hit of a line that is like another one; it is read in full when that is needed."""
        reread = partial(_hit_like, first.rule, found, self._book)
        return Hit(first.rule, first.record, lineno=found.lineno, offset=found.offset, reread=reread)
