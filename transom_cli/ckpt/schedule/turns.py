"""Which of the further directories get a copy of a durable checkpoint. Pure.

Every n-th gets one, and so does the first of a launch: whoever counted before is gone, and a job that restarts often
would else never come to its n-th. It also shows at once whether a directory can be used. What could not be copied is
made good with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class Turns:
    def __init__(self, also: Mapping[Path, int]) -> None:
        self.also = dict(also)
        self._since: dict[Path, int] = {}  # durable checkpoints since the one that was due last

    def due(self) -> list[Path]:
        """One more checkpoint is durable: where it is to be copied, in the order in which they were given."""
        for directory in self._since:
            self._since[directory] += 1
        due = [d for d, every in self.also.items() if self._since.get(d, every) >= every]
        self._since.update(dict.fromkeys(due, 0))
        return due

    def failed(self, directory: Path) -> None:
        """The one that was due is not there: the next one is to be."""
        self._since.pop(directory, None)
