"""Text for terminals and pipes: numbers, times, wrapping, and lines of spans with a tone. Pure, except for local time.

A tone only repeats in colour what the words say. The same lines go to a pipe as plain text and to a terminal in colour
(`view.terminal`).
"""

import textwrap
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timezone

from transom_cli.errors import printable
from transom_cli.plural import some as some

DAY = 86400.0
NEVER_CUT = 10_000  # width for output that is not a terminal
LABEL = 12  # width of the label column
_MAX_INDENT = 32  # of continuation lines
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDE = "WF"  # East Asian widths that take two columns

Span = tuple[str, str]
"""Text and its tone: "" (plain), good, warn, bad, note, strong or dim."""
Line = tuple[Span, ...]

# --- numbers, times, names ---


def span(seconds: float) -> str:
    """Format a duration: `4.2 s`, `3m 05s`, `6h 12m`, `2d 4h`."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s" if seconds < 9.95 else f"{min(seconds, 59):.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02d}m"
    return f"{hours // 24}d {hours % 24}h"


def age(seconds: float) -> str:
    """Format an age like `span`, with fewer digits for long ones: `23 s`, `17 min`, `6h 12m`."""
    return f"{int(seconds // 60)} min" if 600 <= seconds < 3600 else span(seconds)


def brief(seconds: float) -> str:
    """Format a duration for a column: `4s`, `3m`, `6h`, `2d`."""
    for unit, size in (("d", DAY), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size or (unit == "m" and seconds >= size):
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0.0))}s"


def stamped(stamp: str) -> float:
    """Return the time of the stamp in a run's ID (Unix time)."""
    return datetime.strptime(f"{stamp}+0000", "%Y%m%d-%H%M%S%z").timestamp()


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def day_time(at: float, now: float) -> str:
    """Return the time of day, or date and time if a day or more from now. Both have the same width."""
    day = datetime.fromtimestamp(at)
    return day.strftime("%H:%M:%S" if abs(now - at) < DAY else "%d %b %H:%M")


def zone(at: float) -> str:
    """Return the name of the local time zone."""
    return datetime.fromtimestamp(at).astimezone().tzname() or "local time"


def utc(at: float) -> str:
    """Return ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count(number: int) -> str:
    return f"{number:,}"


def size(count: float) -> str:
    """Format bytes: `512 B`, `11.2 GiB`."""
    power = _power(count)
    return f"{count / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def size_of(done: float, total: float) -> str:
    """Format a part of a number of bytes: `3.1 of 12.0 GiB`."""
    power = _power(total / 10)  # a unit in which a small part is still visible
    unit, digits = 1024**power, 1 if power and total < 100 * 1024**power else 0
    return f"{done / unit:,.{digits}f} of {total / unit:,.{digits}f} {_UNITS[power]}"


def _power(count: float) -> int:
    return next((n for n in range(len(_UNITS) - 1) if count < 1024 ** (n + 1)), len(_UNITS) - 1)


# --- width ---


def cells(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in _WIDE for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def fit(text: str, width: int) -> str:
    """Escape control characters, and cut the text to `width` columns."""
    text = printable(text)
    if cells(text) <= width:
        return text
    end = "..."[: max(width, 0)]
    text = text[: max(width, 0)]
    while text and cells(text) > width - len(end):
        text = text[:-1]
    return text + end


def wrapped(before: str, text: str, width: int) -> list[str]:
    """Wrap text behind a label.

    Args:
        before: The label; safe for a terminal. Continuation lines are indented to its width, on a narrow terminal by 4.
        text: Untrusted text; control characters are escaped.
    """
    text = printable(text)
    if len(before) + len(text) <= width:
        return [before + text]
    indent = min(len(before), _MAX_INDENT) if width >= 2 * _MAX_INDENT else 4
    return textwrap.wrap(before + text, max(width, 20), subsequent_indent=" " * indent) or [before]


# --- lines of spans ---


def line(*parts: str | Span) -> Line:
    """Make a line from untrusted text."""
    spans = ((part, "") if isinstance(part, str) else part for part in parts)
    return tuple((printable(text), tone) for text, tone in spans if text)


def plain(one: Line) -> str:
    return "".join(text for text, _ in one)


def cut(one: Line, width: int) -> Line:
    """Cut a line to `width` columns, with dots at its end."""
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
    """Make a row whose text wraps to at most `most` lines; with width None it does not wrap."""
    if width is None:
        return [row(label, (text, tone))]
    safe = printable(text)
    room = max(20, width - LABEL)
    broken = textwrap.wrap(safe, room, max_lines=most, placeholder=" ...") if cells(safe) > room else [safe]
    return [row("" if i else label, (part, tone)) for i, part in enumerate(broken)]


def command_rows(label: str, command: str, width: int | None) -> list[Line]:
    """Make a row with a command, which is never cut: a long one goes below its label, split with backslashes."""
    safe = printable(command)
    if width is None or LABEL + cells(safe) <= width:
        return [row(label, (safe, "note"))]
    parts = textwrap.wrap(safe, max(1, width - 1), drop_whitespace=False, break_on_hyphens=False)
    ends = ["\\"] * (len(parts) - 1) + [""]
    return [line((label, "dim")), *(line((part + end, "note")) for part, end in zip(parts, ends, strict=True))]


def table(head: tuple[str, ...], body: Iterable[tuple[str | Span, ...]], right: frozenset[str]) -> list[Line]:
    """Lay out a table. Drawn here and not by rich, whose import takes as long as all the rest of `transom status`.

    Args:
        right: Heads of the columns that are aligned right.
    """
    grid = [[(name, "dim") for name in head], *([_span(cell) for cell in one] for one in body)]
    widths = [max(cells(one[i][0]) for one in grid) for i in range(len(head))]
    made = []
    for one in grid:
        spans = []
        for name, width, (text, tone) in zip(head, widths, one, strict=True):
            pad = " " * (width - cells(text))
            spans.append((f"{pad}{text}  " if name in right else f"{text}{pad}  ", tone))
        made.append(_stripped(spans))
    return made


def _span(cell: str | Span) -> Span:
    text, tone = (cell, "") if isinstance(cell, str) else cell
    return printable(text), tone


def _stripped(spans: list[Span]) -> Line:
    while spans and not spans[-1][0].strip():
        spans.pop()
    return (*spans[:-1], (spans[-1][0].rstrip(), spans[-1][1])) if spans else ()
