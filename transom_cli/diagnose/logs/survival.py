"""Did the training go on after a line that may end one? Then the line was noise, or was handled."""

from __future__ import annotations

import re
from pathlib import Path

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.reading import opened
from transom_cli.diagnose.logs.rule import Level

LOOKED_AT = 1 << 20  # bytes behind the line, and before it
ENOUGH = 5  # further lines of progress: other ranks' bars go on for a moment
_NUMBER = r"[-+]?\d"
_PROGRESS = re.compile(
    rf"(?i)(?:\d ?(?:it|img|images|samples|tokens)/s|\ds/it|\d%\||\bglobal_step\b|\bloss\b\W{{0,6}}{_NUMBER}"
    rf"|\b(?:step|iter|iteration|epoch|batch|episode|timestep|trial|round|generation)s?\b\W{{0,4}}{_NUMBER})".encode()
)
_FINITE = re.compile(rf"(?i)\b\w*(?:loss|ppl|bpb|perplexity)\w*\b\W{{0,6}}{_NUMBER}".encode())
_NOT_FINITE = re.compile(rb"(?i)\b(?:nan|inf)\b")
_DONE = re.compile(  # libraries' own words: a script may say so whatever has happened
    rb"exits successfully|'train_runtime'|`Trainer.fit` stopped: `max_|Out of bounds values : 0 OK"
    rb"|\[after training is done\]"
)

_BETWEEN = (Category.NETWORK_FABRIC, Category.RENDEZVOUS_PORT, Category.NCCL_HANG, Category.EXTERNAL_SERVICE)


def went_on(hit: Hit, path: Path) -> bool:
    """Whether it was noise: the training goes on after it, or a connection breaks when all is done."""
    try:
        with opened(path) as file:
            closing = hit.level is Level.SIGN and hit.rule.category in _BETWEEN
            start = max(0, hit.offset - LOOKED_AT) if closing else hit.offset
            file.seek(start)
            before, after = file.read(hit.offset - start), file.read(LOOKED_AT)
    except OSError:
        return False
    if any(re.compile(one.encode()).search(after) for one in hit.rule.over):
        return True
    return _progressed(hit, after) or _DONE.search(before) is not None


def _progressed(hit: Hit, after: bytes) -> bool:
    """Whether at least `ENOUGH` lines of progress follow; of a loss that is not a number: with one that is again."""
    numeric = hit.rule.category is Category.NUMERIC_DIVERGENCE
    lines = set()
    for raw in after.replace(b"\r", b"\n").split(b"\n")[1:]:
        short = raw[:2000]
        if (_FINITE.search(short) and not _NOT_FINITE.search(short)) if numeric else _PROGRESS.search(short):
            lines.add(short)
            if len(lines) >= ENOUGH:
                return True
    return False
