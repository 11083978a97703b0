"""All rules together, compiled: which of them know a line. RE2, so that no line, and no site's rule, takes for ever."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import re2

from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.rule import Level, Rule

Expression = Any  # re2 has no types
_DIGIT = re.compile(r"(?<!\{)(?<!\{\d)(?<!,)(?:\d|\\d)(?![\d,]*\})")  # in an expression, but for a quantifier's
_NUMBERS = b"0123456789.+-"
_DULL = 4096  # kinds of lines


@dataclass(frozen=True)
class Match:
    """A rule that knows a line. where: the groups of its expression that were found."""

    rule: Rule
    where: dict[str, str] = field(default_factory=dict)


def literal(text: str) -> str:
    """As an expression. Text in lower case stands for any case."""
    escaped = re2.escape(text)
    return f"(?i:{escaped})" if text == text.lower() else escaped


class Rulebook:
    """`mark` finds, in megabytes at once, lines that any rule may know; `matches` tells which do."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        options = re2.Options()
        options.max_mem = 256 << 20  # of automata, where hundreds of texts are looked for at once
        options.log_errors = False
        options.encoding = re2.Options.Encoding.LATIN1  # bytes: what is broken UTF-8 is looked at all the same
        texts = sorted({text for rule in self.rules for text in rule.any}, key=lambda t: (-len(t), t))
        telling = {text for rule in self.rules if rule.level is not Level.BENIGN for text in rule.any}
        self.mark: Expression = re2.compile("|".join(literal(t) for t in texts if t in telling).encode(), options)
        self._blind = [not any(map(_DIGIT.search, (*rule.match, *rule.unless))) for rule in self.rules]
        self._dull: set[bytes] = set()
        self._texts = re2.Set.SearchSet(options)
        self._of: list[tuple[int, ...]] = []
        for text in texts:
            self._texts.Add(literal(text).encode())
            self._of.append(tuple(n for n, rule in enumerate(self.rules) if text in rule.any))
        self._texts.Compile()
        self._match = [tuple(re2.compile(one) for one in rule.match) for rule in self.rules]
        self._unless = [tuple(re2.compile(one) for one in rule.unless) for rule in self.rules]

    def dull(self, raw: bytes) -> bool:
        """Whether a line that differs in its numbers alone was known by no rule, so that this one is not either.

        A training may print one of the texts in every line, as a column's name.
        """
        return raw.translate(None, _NUMBERS) in self._dull

    def remember_dull(self, raw: bytes, record: Record) -> None:
        """Nobody knew it. Not where a rule that might have looks at numbers (an Xid, an exit code)."""
        hits = self._texts.Match(record.line.encode("utf-8", "replace")) or ()
        if len(self._dull) < _DULL and all(self._blind[n] for hit in hits for n in self._of[hit]):
            self._dull.add(raw.translate(None, _NUMBERS))

    def matches(self, record: Record, *, benign: bool = False) -> tuple[Match, ...]:
        """The best first: by weight, then level. Nothing when a benign rule knows the line, but for `benign`: then it
        stands first."""
        hits = self._texts.Match(record.line.encode("utf-8", "replace")) or ()
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
                return (Match(rule),) if benign else ()
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
