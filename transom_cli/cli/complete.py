"""Completion of run ids, asked for at every press of TAB: with the standard library alone, and by names alone.

It only looks, and is silent about whatever is wrong: what cannot be read completes to nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import typer

from transom_cli.errors import TransomError
from transom_cli.layout import RUN_ID

MOST = 100  # of ids, the newest: more would not fit a screen


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest runs whose ids start with ``incomplete``. None for a path: shells complete these by themselves."""
    if "/" in incomplete:
        return []
    from transom_cli.config.root import runs_root

    root = ctx.params.get("root")
    with contextlib.suppress(OSError, RuntimeError, TransomError):
        return newest(runs_root(Path(root) if root else None, os.environ), incomplete)
    return []


def newest(root: Path, start: str = "") -> list[str]:
    """Ids of runs in ``root``, the newest first. Raises OSError where it cannot be read."""
    matches = (RUN_ID.fullmatch(path.name) for path in root.iterdir())
    dated = sorted(((m["stamp"], m[0]) for m in matches if m and m[0].startswith(start)), reverse=True)
    return [name for _, name in dated[:MOST]]
