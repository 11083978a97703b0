"""Long words under a label: wrapped and not cut, so that what is read is whole. Pure."""

from __future__ import annotations

import textwrap

from transom_cli.errors import printable

NEVER_CUT = 10_000  # columns, where no terminal has a say
MARGIN = 32  # columns at most before the words of a further line


def wrapped(before: str, words: str, width: int) -> list[str]:
    """`before` and the words; what does not fit goes under the words, or, on a narrow terminal, behind a small margin.

    before: safe for a terminal. words: of anybody.
    """
    text = printable(words)
    if len(before) + len(text) <= width:
        return [before + text]
    margin = min(len(before), MARGIN) if width >= 2 * MARGIN else 4
    return textwrap.wrap(before + text, max(width, 20), subsequent_indent=" " * margin) or [before]
