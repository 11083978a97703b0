"""The log rules: what is known about one message that failing jobs print, compiled for fast matching. Pure.

A rule describes one line. `any`: literal texts; the line must contain one; lower case matches any case.
`match`: RE2 expressions; one must match the text after its labels (`grammar`); the groups node, rank, peer,
device and code are reported. `unless`: expressions for lines that only look alike.

A text is looked up by four of its bytes. In large logs and long lines all texts are searched at once, with RE2 if it is
installed (the agent runs in other people's containers): hundreds of megabytes a second.
"""

import enum
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.masks import Search, WordMasks, literals, masked, pieces, words_of


class Level(enum.IntEnum):
    """How close a line is to the cause. A lower level is reported only if no higher one explains the failure.

    SIGN: a symptom that victims print (a watchdog, a reset connection, an exit code). ENDING: the job was ended from
    outside (time limit, cancelled). CAUSE: what went wrong. AUTHORITY: the author knows the cause, whatever was printed
    before (Slurm's node failure, the kernel's record of a lost GPU, an OOM kill).
    """

    BENIGN = 0
    SIGN = 1
    ENDING = 2
    CAUSE = 3
    AUTHORITY = 4


class Blames(str, enum.Enum):
    """Whom a line blames: the rank and node that print it, those that it names, or nobody."""

    PRINTER = "printer"
    NAMED = "named"
    NOBODY = "nobody"


class Scope(str, enum.Enum):
    """Where the fault is: on a node (avoid it), in the job (restart it), or with its user (it would happen again)."""

    NODE = "node"
    JOB = "job"
    USER = "user"


@dataclass(frozen=True)
class Rule:
    """One rule.

    Args:
        weight: of two rules of one level that match a line, the heavier (more specific) one wins.
        explains: categories of its consequences, even if they were printed earlier.
        below: the next exception below the line says the cause; for a benign rule, that exception is harmless too.
        lasts: a healthy run may print the line and continue; it counts unless the training continued.
        over: expressions for later lines that end the trouble.
        yields: the program continues after the line, so a later cause of another kind wins.
        times: how many such lines it takes.
        traced: an exception's last line; without a traceback above it, it is only a message and counts as a symptom.
        frame: the line is a frame of a traceback. framed: an exception that becomes the rule of its heaviest frame.
        source: the rule file.
        built_in: tests prove that Python's engine does not need long for the expressions.
    """

    name: str
    category: Category | None
    level: Level
    any: tuple[str, ...]
    match: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    scope: Scope = Scope.JOB
    action: Action = Action.REQUEUE
    blames: Blames = Blames.PRINTER
    weight: int = 50
    confidence: float = 0.8
    explains: tuple[Category, ...] = ()
    below: bool = False
    lasts: bool = True
    over: tuple[str, ...] = ()
    yields: bool = False
    times: int = 1
    traced: bool = False
    frame: bool = False
    framed: bool = False
    note: str = ""
    examples: tuple[str, ...] = ()
    look_alikes: tuple[str, ...] = ()
    source: str = ""
    built_in: bool = False


try:
    import re2
except ImportError:
    re2 = None

Expression = Any  # a compiled expression of either engine; RE2's has no type hints
FAST = re2 is not None
_ERRORS: tuple[type[Exception], ...] = (re.error, re2.error) if FAST else (re.error,)


class Texts:
    """Says which of many texts a line contains. A text in lower case matches any case."""

    def __init__(self, of: Sequence[str]) -> None:
        self._asked = 0
        self._of = [(text == text.lower(), text.encode()) for text in of]
        by_four: dict[bytes, list[int]] = {}
        for n, (_, text) in enumerate(self._of):
            fours = (text[at : at + 4].lower() for at in range(len(text) - 3))
            by_four.setdefault(next((four for four in fours if four not in by_four), text[:4].lower()), []).append(n)
        self._short = [n for four, of in by_four.items() if len(four) < 4 for n in of]
        self._by_key = {key: of for four, of in by_four.items() for key in _keys(four)}
        self._keys = set(self._by_key)

    def which(self, line: bytes) -> tuple[int, ...]:
        """Return the numbers of the texts that the line contains, in any order."""
        self._asked += 1
        if FAST and self._of and (len(line) > SHORT or self._asked > _OFTEN):
            return tuple(self._set.Match(line) or ())
        lower, of = line.lower(), self._of
        near = [n for key in self._keys & _keys(lower) for n in self._by_key[key]]
        return tuple(n for n in (*self._short, *near) if of[n][1] in (lower if of[n][0] else line))

    @cached_property
    def _set(self) -> Expression:
        found = re2.Set.SearchSet(_options())
        for _, text in self._of:
            found.Add(_pattern(text.decode()).encode())
        found.Compile()
        return found


def _keys(line: bytes) -> set[int]:
    """Return every four consecutive bytes of a line, as numbers."""
    view, end = memoryview(line), len(line)
    return set().union(*[view[at : end - (end - at) % 4].cast("I") for at in range(min(4, end))])


def compile_search(of: Sequence[str]) -> Search:
    """Return a search for the first of some texts. A text in lower case matches any case."""
    return (_Fast(of) if FAST else Plain(of)).first


def compile_expression(pattern: str) -> Expression:
    """Compile an RE2 expression. Raises `Mistake` if it is invalid."""
    try:
        return re2.compile(pattern) if FAST else re.compile(pattern)
    except _ERRORS as error:
        said = error.args[0] if error.args else error
        raise Mistake(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


def compile_short(pattern: str) -> re.Pattern[str]:
    """Compile a valid expression for `SHORT` lines, on which Python's engine is much faster than calls of RE2."""
    return re.compile(pattern, re.ASCII)


@lru_cache(maxsize=256)
def compile_bytes(pattern: str) -> Expression:
    """Compile a valid expression for bytes."""
    return re2.compile(pattern.encode()) if FAST else re.compile(pattern.encode())


class Mistake(ValueError):
    """An invalid expression, with the compiler's message."""


SHORT = 1000  # characters of a line; RE2 matches longer ones, since its time is linear in any case
_OFTEN = 500  # lines looked up, which takes as long as to prepare an automaton
_ENOUGH = 48 << 10  # bytes looked up line by line, which takes as long as to prepare a search for all texts at once
_WINDOW = 4096  # bytes searched for all texts before the next window, so that a rare text is not searched to the end


def _options() -> Any:
    options = re2.Options()
    options.max_mem = 16 << 20  # for an automaton; an agent uses about 60 MB, and more makes nothing faster
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1  # bytes: invalid UTF-8 is searched too
    return options


class _Fast:
    """The automaton is built at its first use: that takes longer than to read a small log."""

    def __init__(self, of: Sequence[str]) -> None:
        self._of = of

    @cached_property
    def _any(self) -> Expression:
        return re2.compile("|".join(map(_pattern, self._of)).encode() or b"$.", _options())

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        found = self._any.search(data, at, end)
        return found.span() if found else None


class Plain:
    """Search for one text after the other: some milliseconds for a hundred kilobytes."""

    def __init__(self, of: Sequence[str]) -> None:
        self._texts = [(text == text.lower(), text.encode()) for text in of]
        self._last = self._texts[0] if of else (False, b"\0")  # usually matches next, which leaves less to search
        self._of = self._lower = b""

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        if self._of is not data:  # called repeatedly for the next match in the same data
            self._of, self._lower = data, data.lower()
        for window in range(at, end, _WINDOW):
            found = self._in_window(data, window, min(end, window + _WINDOW), end)
            if found:
                return found
        return None

    def _in_window(self, data: bytes, at: int, until: int, end: int) -> tuple[int, int] | None:
        """Return the first match that begins before `until`."""
        found: tuple[int, int] | None = None
        for any_case, text in (self._last, *self._texts):
            where = self._lower if any_case else data
            start = where.find(text, at, min(end, (found[0] if found else until) + len(text) - 1))
            if start >= 0:
                found, self._last = (start, start + len(text)), (any_case, text)
        return found


def _pattern(text: str) -> str:
    escaped = re.escape(text)
    return f"(?i:{escaped})" if text == text.lower() else escaped


_DIGIT = lazy_re(r"(?<!\{)(?<!\{\d)(?<!,)(?:\d|\\d)(?![\d,]*\})")  # in an expression, except in quantifiers
_LOOSE = lazy_re(r"\\d[+*]|\\d\{1,\d+\}|0-9")  # in an expression: any number
_GROUP = lazy_re(r"\(\?P<\w+>")
_NEGATED = lazy_re(r"\[\^[^\]]*[0-9][^\]]*\]")
_VALUE = lazy_re(r"\{\d*,?\d*\}|\\.|\d")  # in an expression: a digit, or what contains one without meaning it
_SETS = 4096  # of texts, whose rules are remembered


@lru_cache(maxsize=4096)
def _exact(expression: str) -> bool:
    """Whether the expression looks at the value of a number."""
    return _DIGIT.search(_LOOSE.sub("", expression)) is not None


def _unanchored(expression: str) -> str:
    """Return the expression without named groups and for a whole line: it was written for the text after its labels."""
    flag, expression = ("i", expression[4:]) if expression.startswith("(?i)") else ("", expression)
    return f"(?{flag}:{_GROUP.sub('(?:', expression).removeprefix('^')})"


def _precedence(rule: Rule) -> tuple[float, int]:
    return (-rule.weight, -rule.level) if rule.level is not Level.BENIGN else (-math.inf, 0)


def _zeroed(expression: str) -> str:
    """Return an expression that finds the matches of this one if all digits are zeros, and perhaps others."""
    loose = _NEGATED.sub("[^\n]", expression)
    return _VALUE.sub(lambda one: one[0] if len(one[0]) > 1 else "0", loose)


@dataclass(frozen=True)
class Match:
    """A rule that matches a line, and the groups that its expression found."""

    rule: Rule
    where: dict[str, str] = field(default_factory=dict)


class Rulebook:
    """All rules, compiled. `first` searches megabytes for lines worth a look; `matches` says which rules match one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._number = {rule.name: n for n, rule in enumerate(self.rules)}
        texts = sorted({text for rule in self.rules for text in rule.any}, key=lambda t: (-len(t), t))
        telling = {text for rule in self.rules if rule.level is not Level.BENIGN or rule.below for text in rule.any}
        self.first = compile_search([text for text in texts if text in telling])
        self.which = lru_cache(maxsize=8)(Texts(texts).which)  # of a new line, several questions are asked
        self._telling = {n for n, text in enumerate(texts) if text in telling}
        self.looked_up = 0  # bytes of lines that were looked up one by one
        by_text: dict[str, list[int]] = {}
        for n, rule in enumerate(self.rules):
            for text in dict.fromkeys(rule.any):
                by_text.setdefault(text, []).append(n)
        self._of = [tuple(by_text[text]) for text in texts]
        self._texts = texts
        self._telling_words = lru_cache(maxsize=8)(self._search_words)  # shared by the logs of a job
        self._of_texts: dict[tuple[int, ...], list[int]] = {}
        self._compiled: dict[tuple[int, bool], tuple[tuple[Expression, ...], tuple[Expression, ...]]] = {}

    @cached_property
    def _numbered(self) -> list[str]:
        return [text for text in self._texts if any(map(str.isdigit, text))]

    @cached_property
    def _without_numbers(self) -> Texts:
        return Texts([words_of(text.lower().encode()).decode() for text in self._numbered])

    @cached_property
    def _in_mask(self) -> Texts:
        return Texts([masked(text.encode()).decode() for text in self._numbered])

    @property
    def searches(self) -> bool:
        """Whether it pays to search for all texts at once."""
        return FAST and self.looked_up >= _ENOUGH

    def says_nothing(self, raw: bytes) -> bool:
        """Whether a line contains no text."""
        return self._telling.isdisjoint(self.which(raw))

    def is_numbered(self, mask: bytes) -> bool:
        """Whether it depends on their numbers if lines with this mask contain a text."""
        return bool(self._in_mask.which(mask))

    def is_blind(self, raw: bytes) -> bool:
        """Whether no text and no rule that a line may concern looks at numbers."""
        expressions = (one for n in self.candidates(raw) for one in self._expressions_of(n))
        return not self.is_numbered(masked(raw)) and not any(map(_DIGIT.search, expressions))

    def candidates(self, raw: bytes) -> set[int]:
        """Return the numbers of the rules that have a text in a line."""
        return {n for hit in self.which(raw) for n in self._of[hit]}

    def places(self, raw: bytes) -> tuple[Expression, ...]:
        """Return expressions that find the numbers that rules look at in a line with these words, in its mask."""
        texts = [_pattern(self._numbered[n]) for n in self._without_numbers.which(words_of(raw))]
        expressions = (one for n in sorted(self.candidates(raw)) for one in self._expressions_of(n))
        return tuple(compile_bytes(_zeroed(part)) for part in (*texts, *map(_unanchored, filter(_exact, expressions))))

    def word_masks(self, rules: Iterable[int]) -> WordMasks:
        """Return what masks words, except those in which labels, texts, and expressions of some rules find anything."""
        return WordMasks(self._telling_words(frozenset(rules)))

    def _search_words(self, rules: frozenset[int]) -> Search:
        expressions = (*grammar.EXPRESSIONS, *(one for n in rules for one in self._expressions_of(n)))
        texts = (*chain.from_iterable(map(literals, expressions)), *self._texts)
        return compile_search(sorted(set[str]().union(*map(pieces, texts))))

    def _expressions_of(self, n: int) -> tuple[str, ...]:
        return (*self.rules[n].match, *self.rules[n].unless)

    def best(self, record: Record) -> Match | None:
        """Return the best of `matches`."""
        first = next(self._matching(record), None)
        return None if first is None or (first.rule.level is Level.BENIGN and not first.rule.below) else first

    def where(self, rule: Rule, record: Record) -> dict[str, str]:
        """Return the groups that a rule finds in a line that it is known to match."""
        match, _ = self._expressions(self._number[rule.name], rule.built_in and len(record.text) <= SHORT)
        return _where(match, record.text) or {}

    def matches(self, record: Record, *, benign: bool = False) -> tuple[Match, ...]:
        """Return the matching rules, best first: by weight, then level. A benign match returns nothing, except with
        `benign` or if the rule concerns the exception below the line: then it comes first."""
        found = tuple(self._matching(record))
        if found and found[0].rule.level is Level.BENIGN:
            return found[:1] if benign or found[0].rule.below else ()
        return found

    def _matching(self, record: Record) -> Iterator[Match]:
        """Yield the matching rules, best first; after a benign one, the others do not matter."""
        text = record.text
        for n in self._candidates(self.which(record.line.encode("utf-8", "replace"))):
            rule = self.rules[n]
            match, unless = self._expressions(n, rule.built_in and len(text) <= SHORT)
            if any(one.search(text) for one in unless):
                continue
            where = _where(match, text)
            if where is not None:
                yield Match(rule, where)

    def _candidates(self, texts: tuple[int, ...]) -> list[int]:
        """Return the rules that have one of these texts: benign ones first, then by weight and level."""
        known = self._of_texts.get(texts)
        if known is None:
            of = sorted({n for text in texts for n in self._of[text]})
            if len(self._of_texts) >= _SETS:
                self._of_texts.clear()
            known = self._of_texts[texts] = sorted(of, key=lambda n: _precedence(self.rules[n]))
        return known

    def _expressions(self, n: int, short: bool) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
        """Return `match` and `unless` of a rule, compiled when they are first used."""
        if (n, short) not in self._compiled:
            rule, engine = self.rules[n], compile_short if short else compile_expression
            self._compiled[n, short] = tuple(map(engine, rule.match)), tuple(map(engine, rule.unless))
        return self._compiled[n, short]

    @cached_property
    def by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}


def _where(expressions: Sequence[Expression], text: str) -> dict[str, str] | None:
    """Return the groups of the first expression that matches; None if none does."""
    if not expressions:
        return {}
    for one in expressions:
        match = one.search(text)
        if match:
            return {name: value for name, value in match.groupdict().items() if value}
    return None
