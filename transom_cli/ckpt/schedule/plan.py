"""The plan of the next saves: their steps, and which further directories get copies. Pure; part of an account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

AUTO = "auto"


@dataclass(frozen=True)
class NextSaves:
    """The next saves: at `step`, then every `every` steps.

    persist: one of how many saves becomes durable. durable: the step of the next one that does. Or both are None, and
    the first save from `durable_from` on becomes durable (seconds since the epoch by the clock of rank 0's node).
    """

    step: int
    every: int
    persist: int | None = None
    durable: int | None = None
    durable_from: float | None = None

    def after(self, done: int) -> int:
        """The first save after step `done`, also if the planned one has passed."""
        return _beyond(self.step, self.every, done)

    def durable_after(self, done: int) -> int | None:
        """The first save after step `done` that becomes durable; None if the clock decides."""
        if self.durable is None or self.persist is None:
            return None
        return _beyond(self.durable, self.every * self.persist, done)


def _beyond(first: int, apart: int, done: int) -> int:
    return first if done < first else first + ((done - first) // max(1, apart) + 1) * max(1, apart)


Place = TypeVar("Place")  # a directory, or a URL


class CopyTurns(Generic[Place]):
    """Which further places get a copy of a durable checkpoint.

    Every n-th gets one, and so does the first of a launch: the count of the launch before is lost, and a job that
    restarts often would never reach its n-th. It also shows at once whether a directory can be used. A failed copy is
    made up for by the next one.
    """

    def __init__(self, also: Mapping[Place, int]) -> None:
        self.also = dict(also)
        self._since: dict[Place, int] = {}  # durable checkpoints since the one that was due last

    def due(self) -> list[Place]:
        """One more checkpoint is durable. Returns where to copy it, in the given order."""
        for directory in self._since:
            self._since[directory] += 1
        due = [d for d, every in self.also.items() if self._since.get(d, every) >= every]
        self._since.update(dict.fromkeys(due, 0))
        return due

    def failed(self, directory: Place) -> None:
        """The copy failed: the next checkpoint is due there."""
        self._since.pop(directory, None)
