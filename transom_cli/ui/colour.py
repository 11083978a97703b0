"""Lines in colours, for a terminal: what a tone looks like. The only place that loads rich for what prints and ends."""

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


def show(lines: Iterable[Line], *, colours: bool = True) -> None:
    """To stdout; in colours only where that is a terminal which shows them."""
    if coloured(os.environ, wanted=colours):
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(text_of(lines), end="\n")
    else:
        print("\n".join(plain(one) for one in lines))
