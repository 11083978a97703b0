"""Finds many texts at once. RE2 where it is installed; else Python alone, for agents in other people's containers.

Both give the same answers (tests hold them to it). RE2 reads hundreds of megabytes a second, Python some few: enough
for an agent, which reads 64 KiB of a log at a look. Expressions are RE2's in both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

try:
    import re2
except ImportError:
    re2 = None

Expression = Any  # a compiled one, of either: RE2's has no types
FAST = re2 is not None
_ERRORS: tuple[type[Exception], ...] = (re.error, re2.error) if FAST else (re.error,)


class Texts(Protocol):
    """A text in lower case stands for any case."""

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        """Where the first of them stands in data[at:end], from and to; None: none does."""

    def which(self, line: bytes) -> Sequence[int]:
        """The numbers of those that the line contains, in any order."""


def texts(of: Sequence[str]) -> Texts:
    return _Fast(of) if FAST else Plain(of)


def expression(pattern: str) -> Expression:
    """Raises `Mistake` for one that cannot be used."""
    try:
        return re2.compile(pattern) if FAST else re.compile(pattern)
    except _ERRORS as error:
        said = error.args[0] if error.args else error
        raise Mistake(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


class Mistake(ValueError):
    """Of an expression, in its compiler's words."""


_WINDOW = 4096  # bytes in which texts are looked for one after the other: a rare one must not be sought far and wide


class _Fast:
    def __init__(self, of: Sequence[str]) -> None:
        options = re2.Options()
        options.max_mem = 16 << 20  # of automata; an agent has some 60 MB, and more makes nothing faster
        options.log_errors = False
        options.encoding = re2.Options.Encoding.LATIN1  # bytes: what is broken UTF-8 is looked at all the same
        patterns = [_pattern(text).encode() for text in of]
        self._any = re2.compile(b"|".join(patterns) or b"$.", options)
        self._set = re2.Set.SearchSet(options)
        for pattern in patterns or [b"$."]:
            self._set.Add(pattern)
        self._set.Compile()

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        found = self._any.search(data, at, end)
        return found.span() if found else None

    def which(self, line: bytes) -> Sequence[int]:
        return self._set.Match(line) or ()


class Plain:
    """Looks for one text after the other: of a hundred kilobytes that takes some milliseconds."""

    def __init__(self, of: Sequence[str]) -> None:
        self._texts = [(text == text.lower(), text.encode()) for text in of]
        self._last = self._texts[0] if of else (False, b"\0")  # most often the next one too: it leaves less to search
        self._of = self._lower = b""

    def first(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        if self._of is not data:  # asked again and again for the next one in the same data
            self._of, self._lower = data, data.lower()
        for window in range(at, end, _WINDOW):
            found = self._in_window(data, window, min(end, window + _WINDOW), end)
            if found:
                return found
        return None

    def _in_window(self, data: bytes, at: int, until: int, end: int) -> tuple[int, int] | None:
        """The first that begins before `until`."""
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
    escaped = re2.escape(text)
    return f"(?i:{escaped})" if text == text.lower() else escaped
