"""Did the training go on after a line that may end one? Then the line was noise, or was handled."""

from __future__ import annotations

from pathlib import Path

import re2

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.reading import opened

LOOKED_AT = 1 << 20  # bytes behind the line
ENOUGH = 5  # further lines of progress: other ranks' bars go on for a moment
_NUMBER = r"[-+]?\d"
_PROGRESS = re2.compile(
    rf"(?i)(?:\d(?:it/s|s/it)|\b(?:step|iter|iteration|epoch|batch)s?\b\W{{0,4}}{_NUMBER}|\bloss\b\W{{0,6}}{_NUMBER})".encode()
)
_FINITE = re2.compile(rf"(?i)\b\w*(?:loss|ppl|bpb|perplexity)\w*\b\W{{0,6}}{_NUMBER}".encode())
_NOT_FINITE = re2.compile(rb"(?i)\b(?:nan|inf)\b")


def went_on(hit: Hit, path: Path) -> bool:
    """Whether at least `ENOUGH` lines of progress follow; of a loss that is not a number: with one that is again."""
    try:
        with opened(path) as file:
            file.seek(hit.offset)
            data = file.read(LOOKED_AT)
    except OSError:
        return False
    numeric = hit.rule.category is Category.NUMERIC_DIVERGENCE
    lines = set()
    for raw in data.replace(b"\r", b"\n").split(b"\n")[1:]:
        short = raw[:2000]
        if (_FINITE.search(short) and not _NOT_FINITE.search(short)) if numeric else _PROGRESS.search(short):
            lines.add(short)
            if len(lines) >= ENOUGH:
                return True
    return False
