"""Numbers and times as people read them. Pure."""

from __future__ import annotations

from datetime import datetime

from transom_cli.errors import printable


def span(seconds: float) -> str:
    """`4.2 s`, `3m 05s`, `6h 12m`, `2d 4h`."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02d}m"
    return f"{hours // 24}d {hours % 24}h"


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def count(number: int) -> str:
    return f"{number:,}"


def fit(text: str, width: int) -> str:
    text = printable(text)  # a rank's last words, say
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."
