"""Reads where the newest states of a training are: on disk, and in the nodes' memory."""

from __future__ import annotations

from pathlib import Path

from transom_cli.ckpt.memory.account import newest_whole
from transom_cli.ckpt.memory.shown import read_all
from transom_cli.ckpt.names import step_name
from transom_cli.layout import AttemptDir

Saved = tuple[int, float | None]  # a step, and when it was committed (seconds since the epoch; None: not known)


def on_disk(checkpoints: Path, durable: int) -> Saved | None:
    """durable: the newest published checkpoint's step, or -1."""
    if durable < 0:
        return None
    try:
        return durable, (checkpoints / step_name(durable) / "manifest.json").stat().st_mtime
    except OSError:
        return durable, None


def in_memory(attempt: AttemptDir, now: float) -> Saved | None:
    """The newest snapshot of which all shares are there. Reads a file for each node."""
    newest = newest_whole(sight.accounts for sight in read_all(attempt, now).values())
    return None if newest is None else (newest.step, newest.committed)
