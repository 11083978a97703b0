"""Reads where the newest states of a training are: on disk, and in the nodes' memory."""

from __future__ import annotations

from pathlib import Path

from transom_cli.ckpt.memory.account import together
from transom_cli.ckpt.memory.shown import read_all
from transom_cli.ckpt.names import step_name
from transom_cli.layout import RunDir
from transom_cli.telling.numbers import DISK, MEMORY


def read_saved(
    run: RunDir, checkpoints: Path, durable: int, attempt: tuple[int, int] | None, now: float
) -> dict[str, tuple[int, float | None]]:
    """By place the newest step and when it was committed (seconds since the epoch; None: not known).

    durable: the newest published checkpoint's step, or -1. attempt: the present one, while it may hold snapshots.
    """
    found: dict[str, tuple[int, float | None]] = {}
    if durable >= 0:
        try:
            at = (checkpoints / step_name(durable) / "manifest.json").stat().st_mtime
        except OSError:
            at = None
        found[DISK] = (durable, at)
    if attempt is not None:
        sights = read_all(run.attempt(*attempt), now).values()
        whole = [step for sight in sights for step in together(sight.accounts) if not step.missing]
        if whole:
            newest = max(whole, key=lambda step: step.step)
            found[MEMORY] = (newest.step, newest.committed)
    return found
