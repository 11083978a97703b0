"""Lines of text whose parts have a tone: what a colour would say, which the words say too. Pure.

The same lines go to a pipe as they are, and to a terminal in colours (`ui.colour`): so the words cannot differ.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from transom_cli.errors import printable
from transom_cli.ui.words import cells, fit

Span = tuple[str, str]
"""Text and its tone: "" (plain), good, warn, bad, note, strong or dim."""
Line = tuple[Span, ...]
LABEL = 12


def line(*parts: str | Span) -> Line:
    """Safe for a terminal, whoever wrote the words."""
    spans = ((part, "") if isinstance(part, str) else part for part in parts)
    return tuple((printable(text), tone) for text, tone in spans if text)


def plain(one: Line) -> str:
    return "".join(text for text, _ in one)


def cut(one: Line, width: int) -> Line:
    """No wider than `width` columns; what is cut ends in dots."""
    if cells(plain(one)) <= width:
        return one
    short, spans = fit(plain(one), width), []
    for text, tone in one:
        spans.append((short[: len(text)], tone))
        short = short[len(text) :]
    return tuple(span for span in spans if span[0])


def row(label: str, *parts: str | Span) -> Line:
    return line((f"{label:<{LABEL}}", "dim"), *parts)


def rows(label: str, text: str, width: int | None, *, tone: str = "", most: int = 3) -> list[Line]:
    """A row whose text may take `most` lines. width: None where it is not to be broken."""
    if width is None:
        return [row(label, (text, tone))]
    told = printable(text)
    room = max(20, width - LABEL)
    broken = textwrap.wrap(told, room, max_lines=most, placeholder=" ...") if cells(told) > room else [told]
    return [row("" if i else label, (part, tone)) for i, part in enumerate(broken)]


def command_rows(label: str, command: str, width: int | None) -> list[Line]:
    """A command is never cut: one that is too long stands below its label, broken so that a shell takes it as it is."""
    told = printable(command)
    if width is None or LABEL + cells(told) <= width:
        return [row(label, (told, "note"))]
    parts = textwrap.wrap(told, max(1, width - 1), drop_whitespace=False, break_on_hyphens=False)
    ends = ["\\"] * (len(parts) - 1) + [""]
    return [line((label, "dim")), *(line((part + end, "note")) for part, end in zip(parts, ends, strict=True))]


def table(head: tuple[str, ...], body: Iterable[tuple[str | Span, ...]], right: frozenset[str]) -> list[Line]:
    """Columns as wide as their widest cell. right: heads of those whose cells end on one line, as numbers do."""
    rows_of = [[_span(cell) for cell in one] for one in body]
    grid = [[(name, "dim") for name in head], *rows_of]
    widths = [max(cells(one[i][0]) for one in grid) for i in range(len(head))]
    made = []
    for one in grid:
        spans = []
        for name, width, (text, tone) in zip(head, widths, one, strict=True):
            pad = " " * (width - cells(text))
            spans.append((f"{pad}{text}  " if name in right else f"{text}{pad}  ", tone))
        made.append(_trimmed(spans))
    return made


def _span(cell: str | Span) -> Span:
    text, tone = (cell, "") if isinstance(cell, str) else cell
    return printable(text), tone


def _trimmed(spans: list[Span]) -> Line:
    """Without blanks at its end."""
    while spans and not spans[-1][0].strip():
        spans.pop()
    return (*spans[:-1], (spans[-1][0].rstrip(), spans[-1][1])) if spans else ()
