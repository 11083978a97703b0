"""Runs to report on: composed ones, and those that a real Slurm has left."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from view_scenes import SCENES

from transom_cli.layout import RunDir

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
RUNS = [*SCENES, *sorted(path.name for path in RECORDED.iterdir())]


def make(name: str, folder: Path) -> RunDir:
    """By the clock of `view_made.NOW`."""
    if name not in SCENES:
        return RunDir(RECORDED / name)
    SCENES[name](folder)
    return RunDir(next(folder.iterdir()))
