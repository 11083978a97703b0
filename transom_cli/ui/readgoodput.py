"""How much of its time a run has made use of, for the status screen, where its journals are short enough to ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transom_cli.layout import RunDir
from transom_cli.supervise.ledger import read_book
from transom_cli.ui.goodput import summary
from transom_cli.ui.view import RunView

MOST = 1 << 20  # bytes of journals: a tenth of a second


def with_goodput(run: RunDir, view: RunView) -> RunView:
    """Without it where there is nothing to tell, or too much to be read for a glance: `transom goodput` tells then."""
    try:
        journals = [run.journal, *run.attempts.glob("*/*.jsonl")]
        if sum(_size(path) for path in journals) > MOST:
            return view
        account = read_book(run, view.now).account
    except OSError:
        return view
    return replace(view, goodput=account.whole.goodput if account.beats else None, goodput_words=summary(account))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
