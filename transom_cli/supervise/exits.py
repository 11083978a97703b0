"""How the ranks of one launch ended, from the files that their own wrappers wrote."""

from __future__ import annotations

import json
from pathlib import Path

from transom_cli.core.events import RankExit


def read_exits(folder: Path) -> dict[int, RankExit]:
    """By rank (under torchrun: by node). What cannot be read yet is left out; a later look finds it."""
    found: dict[int, RankExit] = {}
    for path in folder.glob("*.json"):
        try:
            data = json.loads(path.read_text())
            number = int(path.stem.rpartition("-")[2])
            found[number] = RankExit(
                rank=number,
                node=str(data["node"]),
                code=data["code"],
                signal=data["signal"],
                wall=float(data["wall"]),
                step=int(data.get("steps", -1)),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # caught while it was written on a file system without atomic rename
    return found
