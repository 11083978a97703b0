"""Lines in colours, for a terminal: what a tone looks like, as codes for what prints and ends, and for rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from transom_cli.ui.lines import Line, plain

if TYPE_CHECKING:
    from rich.text import Text

STYLES = {
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "note": "cyan",
    "strong": "bold",
    "dim": "dim",
}
_CODES = {"green": "32", "yellow": "33", "bold red": "1;31", "cyan": "36", "bold": "1", "dim": "2"}  # ECMA-48, SGR


def coloured(environ: Mapping[str, str], *, wanted: bool) -> bool:
    """Whether stdout is to get colours."""
    plain_terminal = environ.get("TERM", "") in ("", "dumb") or bool(environ.get("NO_COLOR"))
    return wanted and not plain_terminal and sys.stdout.isatty()


def text_of(lines: Iterable[Line]) -> Text:
    from rich.text import Text

    made = Text(no_wrap=True, overflow="ignore", end="")
    for i, one in enumerate(lines):
        made.append("\n" * bool(i))
        for text, tone in one:
            made.append(text, STYLES.get(tone, ""))
    return made


def painted(one: Line) -> str:
    """With the codes that every terminal knows: to load rich takes longer than to look at a run."""
    return "".join(f"\x1b[{_CODES[STYLES[tone]]}m{text}\x1b[0m" if tone else text for text, tone in one)


def show(lines: Iterable[Line], *, colours: bool = True) -> None:
    """To stdout; in colours only where that is a terminal which shows them."""
    as_text = painted if coloured(os.environ, wanted=colours) else plain
    print("\n".join(as_text(one) for one in lines))
