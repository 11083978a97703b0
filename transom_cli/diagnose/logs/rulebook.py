"""The log rules: what is known about one message that failing jobs print, compiled for fast matching. Pure.

A rule describes one line. `any`: literal texts; the line must contain one; lower case matches any case.
`match`: RE2 expressions; one must match the text after its labels (`grammar`); the groups node, rank, peer,
device and code are reported. `unless`: expressions for lines that only look alike.

Many texts are searched at once, with RE2 if it is installed, else in pure Python (the agent runs in other people's
containers). Both give the same answers, which the tests check. RE2 reads hundreds of megabytes a second, pure Python a
few: enough for an agent, which reads 64 KiB at a time.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.logs.grammar import Record


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


class Texts(Protocol):
    """Search for many texts. A text in lower case matches any case."""

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        """Return the bounds of the first text in data[at:end], or None."""

    def which(self, line: bytes) -> Sequence[int]:
        """Return the numbers of the texts that the line contains, in any order."""


def compile_texts(of: Sequence[str]) -> Texts:
    return _Fast(of) if FAST else Plain(of)


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
_WINDOW = 4096  # bytes searched for all texts before the next window, so that a rare text is not searched to the end


class _Fast:
    """Each automaton is built at its first use: that takes longer than to read a small log."""

    def __init__(self, of: Sequence[str]) -> None:
        self._options = options = re2.Options()
        options.max_mem = 16 << 20  # for automata; an agent uses about 60 MB, and more makes nothing faster
        options.log_errors = False
        options.encoding = re2.Options.Encoding.LATIN1  # bytes: invalid UTF-8 is searched too
        self._patterns = [_pattern(text).encode() for text in of] or [b"$."]

    @cached_property
    def _any(self) -> Expression:
        return re2.compile(b"|".join(self._patterns), self._options)

    @cached_property
    def _set(self) -> Expression:
        found = re2.Set.SearchSet(self._options)
        for pattern in self._patterns:
            found.Add(pattern)
        found.Compile()
        return found

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        found = self._any.search(data, at, end)
        return found.span() if found else None

    def which(self, line: bytes) -> Sequence[int]:
        return self._set.Match(line) or ()


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

    def which(self, line: bytes) -> Sequence[int]:
        lower = line.lower()
        return [n for n, (any_case, text) in enumerate(self._texts) if text in (lower if any_case else line)]


def _pattern(text: str) -> str:
    escaped = re.escape(text)
    return f"(?i:{escaped})" if text == text.lower() else escaped


_DIGIT = re.compile(r"(?<!\{)(?<!\{\d)(?<!,)(?:\d|\\d)(?![\d,]*\})")  # in an expression, except in quantifiers
_LOOSE = re.compile(r"\\d[+*]|\\d\{1,\d+\}|0-9")  # in an expression: any number
_GROUP = re.compile(r"\(\?P<\w+>")
_NEGATED = re.compile(r"\[\^[^\]]*[0-9][^\]]*\]")
_VALUE = re.compile(r"\{\d*,?\d*\}|\\.|\d")  # in an expression: a digit, or what contains one without meaning it
NUMBERS = b"0123456789.+-"
_ADDRESS = re.compile(rb"0[xX][0-9a-fA-F]+|[0-9a-fA-F]*:(?:[0-9a-fA-F]*:)+[0-9a-fA-F]*")
_DULL = 4096  # kinds of lines


def words_of(raw: bytes) -> bytes:
    """Return a line without its numbers and addresses."""
    return (_ADDRESS.sub(b"", raw) if b"0x" in raw or b"::" in raw else raw).translate(None, NUMBERS)


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


_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ESCAPE = re.compile(r"\\[a-zA-Z]")
_WORD = re.compile(r"[a-zA-Z]{3,}")
_LABELLING = frozenset(("rank", "warning", r"%\|", "slurmstepd"))  # what `grammar` looks for beyond the first words


@dataclass(frozen=True)
class Match:
    """A rule that matches a line, and the groups that its expression found."""

    rule: Rule
    where: dict[str, str] = field(default_factory=dict)


class Rulebook:
    """All rules, compiled. `first` searches megabytes for lines worth a look; `matches` says which rules match one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        texts = sorted({text for rule in self.rules for text in rule.any}, key=lambda t: (-len(t), t))
        telling = {text for rule in self.rules if rule.level is not Level.BENIGN or rule.below for text in rule.any}
        self.first = compile_texts([text for text in texts if text in telling]).first
        self.which = compile_texts(texts).which
        by_text: dict[str, list[int]] = {}
        for n, rule in enumerate(self.rules):
            for text in dict.fromkeys(rule.any):
                by_text.setdefault(text, []).append(n)
        self._of = [tuple(by_text[text]) for text in texts]
        numbered = [text for text in texts if any(map(str.isdigit, text))]
        self._numbered = numbered
        without = [text.lower().encode().translate(None, NUMBERS).decode() for text in numbered]
        self._without_numbers = compile_texts(without).which
        self._of_texts: dict[tuple[int, ...], list[int]] = {}
        self._dull: set[bytes] = set()
        self._silent: dict[bytes, bool] = {}
        self._compiled: dict[tuple[int, bool], tuple[tuple[Expression, ...], tuple[Expression, ...]]] = {}

    def silent(self, raw: bytes, words: bytes) -> bool:
        """Whether a line with these words contains no text. Searches one line of those that differ only in numbers."""
        known = self._silent.get(words)
        if known is None:
            known = self.first(raw, 0, len(raw)) is None
            if len(self._silent) >= _DULL:
                self._silent.clear()
            if not known or not self._with_numbers(words):
                self._silent[words] = known
        return known

    def _with_numbers(self, words: bytes) -> list[str]:
        """Return the texts that lines with these words may contain, depending on their numbers."""
        return [self._numbered[n] for n in self._without_numbers(words)]

    def dull(self, raw: bytes) -> bool:
        """Whether no rule matched a line that differs from this one only in its numbers.

        A training may print one of the texts in every line, as a column name.
        """
        return raw.translate(None, NUMBERS) in self._dull

    def remember_dull(self, raw: bytes, record: Record) -> None:
        """Remember that no rule matched the line, unless a candidate rule looks at numbers (an Xid, an exit code)."""
        hits = self.which(record.line.encode("utf-8", "replace"))
        if len(self._dull) < _DULL and all(self._is_blind(n) for hit in hits for n in self._of[hit]):
            self._dull.add(raw.translate(None, NUMBERS))

    def numbers(self, raw: bytes) -> tuple[Expression | None, tuple[Expression, ...]]:
        """Return an expression that finds what rules say about numbers in lines with these words; None for nothing.
        Also return expressions that find where other such lines may have it, if their digits are replaced by zeros."""
        texts = [_pattern(text) for text in self._with_numbers(words_of(raw))]
        known = sorted({n for hit in self.which(raw) for n in self._of[hit]})
        exact = (one for n in known for one in (*self.rules[n].match, *self.rules[n].unless) if _exact(one))
        parts = [*texts, *map(_unanchored, exact)]
        places = tuple(compile_bytes(_zeroed(part)) for part in parts)
        return (compile_bytes("|".join(parts)) if parts else None), places

    def begun(self, stem: bytes) -> int:
        """Return how many bytes before the end of a line's stem a text may begin that ends behind it."""
        end = stem.lower().translate(_ZEROS)
        return next((len(prefix) for prefix in self._prefixes if end.endswith(prefix)), 0)

    def words_after(self, stem: bytes, rule: Rule | None) -> Expression:
        """Return an expression for words that matter after a line's stem, which this rule matches best: they are what
        the expressions of the rules before it look for, and what labels contain."""
        of = [self.rules[n] for n in self._candidates(tuple(self.which(stem)))]
        of = of[: of.index(rule) + 1] if rule in of else of
        expressions = " ".join(_GROUP.sub(" ", one) for each in of for one in (*each.match, *each.unless))
        words = {one.lower() for one in _WORD.findall(_ESCAPE.sub(" ", expressions))}
        return compile_bytes(f"(?i:{'|'.join(sorted(words | _LABELLING))})")

    @cached_property
    def _prefixes(self) -> list[bytes]:
        """Beginnings of texts, up to a space; the longest ones first."""
        of = (text.lower().encode().translate(_ZEROS) for rule in self.rules for text in rule.any)
        return sorted({text[:n] for text in of for n in range(1, len(text)) if text[n] == ord(" ")}, key=len)[::-1]

    def best(self, record: Record) -> Match | None:
        """Return the best of `matches`."""
        first = next(self._matching(record), None)
        return None if first is None or (first.rule.level is Level.BENIGN and not first.rule.below) else first

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
        for n in self._candidates(tuple(self.which(record.line.encode("utf-8", "replace")))):
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
            if len(self._of_texts) >= _DULL:
                self._of_texts.clear()
            known = self._of_texts[texts] = sorted(of, key=lambda n: _precedence(self.rules[n]))
        return known

    def _expressions(self, n: int, short: bool) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
        """Return `match` and `unless` of a rule, compiled when they are first used."""
        if (n, short) not in self._compiled:
            rule, engine = self.rules[n], compile_short if short else compile_expression
            self._compiled[n, short] = tuple(map(engine, rule.match)), tuple(map(engine, rule.unless))
        return self._compiled[n, short]

    def _is_blind(self, n: int) -> bool:
        """Whether the rule does not look at numbers."""
        return not any(map(_DIGIT.search, (*self.rules[n].match, *self.rules[n].unless)))

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
