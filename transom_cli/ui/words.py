"""Numbers, times and names as people read them. Pure, but for the local time zone, in which a screen tells times."""

from __future__ import annotations

import unicodedata
from datetime import datetime, timezone

from transom_cli.errors import printable

DAY = 86400.0
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDE = "WF"  # of East Asian letters, as a terminal shows them: two columns each


def span(seconds: float) -> str:
    """`4.2 s`, `3m 05s`, `6h 12m`, `2d 4h`."""
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
    """As `span`, without what does not matter of a thing that is long past: `23 s`, `17 min`, `6h 12m`."""
    return f"{int(seconds // 60)} min" if 600 <= seconds < 3600 else span(seconds)


def brief(seconds: float) -> str:
    """For a column: `4s`, `3m`, `6h`, `2d`."""
    for unit, size in (("d", DAY), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size or (unit == "m" and seconds >= size):
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0.0))}s"


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def day_time(at: float, now: float) -> str:
    """The clock's time; of what is a day or more from now, date and time. As long either way."""
    day = datetime.fromtimestamp(at)
    return day.strftime("%H:%M:%S" if abs(now - at) < DAY else "%d %b %H:%M")


def zone(at: float) -> str:
    """The name of the zone in which times are told."""
    return datetime.fromtimestamp(at).astimezone().tzname() or "local time"


def utc(at: float) -> str:
    """ISO 8601, for programs."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count(number: int) -> str:
    return f"{number:,}"


def size(count: float) -> str:
    """Bytes: `512 B`, `11.2 GiB`."""
    power = _power(count)
    return f"{count / 1024**power:.{1 if power else 0}f} {_BYTES[power]}"


def size_of(done: float, total: float) -> str:
    """Bytes of so many: `3.1 of 12.0 GiB`."""
    power = _power(total / 10)  # so that a small part shows
    unit, digits = 1024**power, 1 if power and total < 100 * 1024**power else 0
    return f"{done / unit:,.{digits}f} of {total / unit:,.{digits}f} {_BYTES[power]}"


def _power(count: float) -> int:
    return next((n for n in range(len(_BYTES) - 1) if count < 1024 ** (n + 1)), len(_BYTES) - 1)


def some(names: tuple[str, ...], most: int = 8) -> str:
    """The first of these names, and how many there are besides."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def cells(text: str) -> int:
    """Columns that a terminal needs for it."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in _WIDE for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def fit(text: str, width: int) -> str:
    """Safe for a terminal, and cut to `width` columns."""
    text = printable(text)  # a rank's last words, say
    if cells(text) <= width:
        return text
    end = "..."[: max(width, 0)]
    text = text[: max(width, 0)]
    while text and cells(text) > width - len(end):
        text = text[:-1]
    return text + end
