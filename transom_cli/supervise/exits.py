"""How the ranks of one launch ended, from the files that their own wrappers wrote."""

from __future__ import annotations

import json
from pathlib import Path

from transom_cli.core.events import RankExit


class ExitRecords:
    """The records of one launch; each file is read once, since its wrapper writes it once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, RankExit] = {}

    def read(self) -> dict[int, RankExit]:
        """By rank (under torchrun: by node). What cannot be read yet is left out; a later look finds it."""
        for path in self._folder.glob("*.json"):
            try:
                number = int(path.stem.rpartition("-")[2])
                if number not in self._known:
                    self._known[number] = _record(number, path)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # caught while it was written on a file system without atomic rename
        return dict(self._known)


def _record(number: int, path: Path) -> RankExit:
    data = json.loads(path.read_text())
    return RankExit(
        rank=number,
        node=str(data["node"]),
        code=data["code"],
        signal=data["signal"],
        wall=float(data["wall"]),
        step=int(data.get("steps", -1)),
        since_start=data.get("since_start") is True,
    )
