"""Which saves become durable, which of these get copies, and the plan of the next saves."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from transom_cli.errors import UsageError

NEVER = 1_000_000_000  # saves until one becomes durable: none does, unless it is requested or urgent
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh])")


class PersistRule:
    """Which saves become durable: every n-th, or the first after some time.

    Rank 0 decides for all ranks.
    """

    def __init__(self, persist: int | str, clock: Callable[[], float]) -> None:
        """Raises UsageError."""
        self.every: int | None = None  # one of how many saves becomes durable; None if the clock decides
        self._seconds = 0.0
        self._hurry = False
        self._count, self._clock, self._last = 0, clock, clock()
        found = _TIME.fullmatch(persist) if isinstance(persist, str) else None
        if found is not None and float(found[1]) > 0:
            self._seconds = float(found[1]) * _SECONDS[found[2]]
        elif type(persist) is int and persist >= 1:
            self.every = persist
        else:
            raise UsageError(
                f"persist={persist!r} is neither a number of saves nor a time",
                "it says how often a snapshot is made durable as well",
                'persist=10 (every tenth), or persist="10m" (also "30s", "1h")',
            )

    @property
    def words(self) -> str:
        """Which saves become durable."""
        if self.every == NEVER:
            return "in memory alone"
        if self.every is None:
            return f"the first after {span(self._seconds)} is made durable"
        return "each is made durable" if self.every == 1 else f"one of {self.every} is made durable"

    def hurry(self) -> None:
        """Make the next save durable: training resumed from memory alone.

        If it were killed again and again before the n-th save, nothing would ever become durable.
        """
        self._hurry = True

    def left(self) -> tuple[int | None, float]:
        """Saves until one becomes durable, including that one; or None, and the seconds until the first one does."""
        if self.every is not None:
            return 1 if self._hurry else max(1, self.every - self._count), 0.0
        return None, 0.0 if self._hurry else max(0.0, self._last + self._seconds - self._clock())

    def due(self, requested: bool) -> bool:
        """Whether this save becomes durable. Call it once for each committed save.

        Args:
            requested: make it durable in any case.
        """
        self._count += 1
        late = self._count >= self.every if self.every is not None else self._clock() - self._last >= self._seconds
        due = requested or self._hurry or late
        if due:
            self._count, self._last, self._hurry = 0, self._clock(), False
        return due


def span(seconds: float) -> str:
    """A duration in words."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


@dataclass(frozen=True)
class NextSaves:
    """The next saves: at `step`, then every `every` steps.

    persist: one of how many saves becomes durable. durable: the step of the next one that does. Or both are None, and
    the first save from `durable_from` on becomes durable (seconds since the epoch by the clock of rank 0's node).
    total: steps of the whole training; 0: unknown.
    """

    step: int
    every: int
    persist: int | None = None
    durable: int | None = None
    durable_from: float | None = None
    total: int = 0

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
