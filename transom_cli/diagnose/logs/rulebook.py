"""All rules together, compiled: which of them know a line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from transom_cli.diagnose.logs import engines
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.rule import Level, Rule

_DIGIT = re.compile(r"(?<!\{)(?<!\{\d)(?<!,)(?:\d|\\d)(?![\d,]*\})")  # in an expression, but for a quantifier's
_NUMBERS = b"0123456789.+-"
_DULL = 4096  # kinds of lines


@dataclass(frozen=True)
class Match:
    """A rule that knows a line. where: the groups of its expression that were found."""

    rule: Rule
    where: dict[str, str] = field(default_factory=dict)


class Rulebook:
    """`first` finds, in megabytes at once, lines that any rule may know; `matches` tells which do."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        texts = sorted({text for rule in self.rules for text in rule.any}, key=lambda t: (-len(t), t))
        telling = {text for rule in self.rules if rule.level is not Level.BENIGN or rule.below for text in rule.any}
        self.first = engines.texts([text for text in texts if text in telling]).first
        self._which = engines.texts(texts).which
        self._of = [tuple(n for n, rule in enumerate(self.rules) if text in rule.any) for text in texts]
        self._blind = [not any(map(_DIGIT.search, (*rule.match, *rule.unless))) for rule in self.rules]
        self._dull: set[bytes] = set()
        self._match = [tuple(map(engines.expression, rule.match)) for rule in self.rules]
        self._unless = [tuple(map(engines.expression, rule.unless)) for rule in self.rules]

    def dull(self, raw: bytes) -> bool:
        """Whether a line that differs in its numbers alone was known by no rule, so that this one is not either.

        A training may print one of the texts in every line, as a column's name.
        """
        return raw.translate(None, _NUMBERS) in self._dull

    def remember_dull(self, raw: bytes, record: Record) -> None:
        """Nobody knew it. Not where a rule that might have looks at numbers (an Xid, an exit code)."""
        hits = self._which(record.line.encode("utf-8", "replace"))
        if len(self._dull) < _DULL and all(self._blind[n] for hit in hits for n in self._of[hit]):
            self._dull.add(raw.translate(None, _NUMBERS))

    def matches(self, record: Record, *, benign: bool = False) -> tuple[Match, ...]:
        """The best first: by weight, then level. Nothing when a benign rule knows the line, but for `benign`, or where
        it speaks of what is below it: then it stands first."""
        hits = self._which(record.line.encode("utf-8", "replace"))
        known = sorted({n for hit in hits for n in self._of[hit]})
        found = []
        for n in known:
            rule = self.rules[n]
            if any(one.search(record.text) for one in self._unless[n]):
                continue
            where = self._where(n, record.text)
            if where is None:
                continue
            if rule.level is Level.BENIGN:
                return (Match(rule),) if benign or rule.below else ()
            found.append(Match(rule, where))
        return tuple(sorted(found, key=lambda m: (m.rule.weight, m.rule.level), reverse=True))

    def _where(self, n: int, text: str) -> dict[str, str] | None:
        if not self._match[n]:
            return {}
        for one in self._match[n]:
            told = one.search(text)
            if told:
                return {name: value for name, value in told.groupdict().items() if value}
        return None

    @cached_property
    def by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}
