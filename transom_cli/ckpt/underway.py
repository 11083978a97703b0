"""What takes a node its time, writing a checkpoint or restoring one, and how far it is. Pure.

Each part of the work counts its own bytes: a rank what it restores, a holder what it writes. Put together they tell how
far the whole is (`joined`), as exactly as the last that was heard of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

WRITING, CHECKING, LOADING = "writing", "checking", "loading"
_STAGES = (WRITING, CHECKING, LOADING)  # a restore checks what is on disk first, all ranks of it before any loads

Told = Callable[[int], object]
"""Is called with how many more bytes were read or written."""


def nobody(count: int) -> None:
    """Counts nothing."""


@dataclass(frozen=True)
class Part:
    """what: one of the above. place: the directory that is written to or read from; "" is memory.

    done, total: bytes of those that have told. whole: of all parts, also of those that have not told yet; 0: not known.
    began: seconds since the epoch, by the clock of the node; of a restore with its first stage.
    """

    what: str
    step: int
    place: str
    done: int
    total: int
    began: float
    whole: int = 0

    @property
    def of(self) -> int:
        """The best that is known of how many bytes there are to be done."""
        return max(self.whole, self.total)


class Counting:
    """A part that grows. By one thread at a time; whoever looks sees a former moment at worst."""

    def __init__(self, what: str, step: int, place: str, total: int, began: float, whole: int = 0) -> None:
        self._start = Part(what, step, place, 0, total, began, whole)
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count

    @property
    def part(self) -> Part:
        return replace(self._start, done=min(self._done, self._start.total))  # a damaged share is read twice


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part for each thing that is done, the older step first: of a restore its last stage, for none begins it
    before all have ended the one before."""
    things: dict[tuple[bool, int, str], list[Part]] = {}
    for part in parts:
        if part.what in _STAGES:  # else it is a later version's
            things.setdefault((part.what == WRITING, part.step, part.place), []).append(part)
    return tuple(_one(things[key]) for key in sorted(things))


def _one(parts: list[Part]) -> Part:
    what = max((part.what for part in parts), key=_STAGES.index)
    those = [part for part in parts if part.what == what]
    done, total = sum(part.done for part in those), sum(part.total for part in those)
    began, whole = min(part.began for part in parts), max(part.whole for part in those)
    return Part(what, parts[0].step, parts[0].place, done, total, began, whole)
