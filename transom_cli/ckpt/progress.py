"""How far a write or a restore of a checkpoint is. Pure.

Each part of the work counts its own bytes: a rank what it restores, a daemon what it writes. Combined they say how far
the whole is (`combined`), as of the last report of each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

WRITING, CHECKING, LOADING = "writing", "checking", "loading"
_STAGES = (WRITING, CHECKING, LOADING)  # all ranks of a restore check the files before any rank loads

OnBytes = Callable[[int], object]
"""Called with the number of bytes just read or written."""


def ignore_bytes(count: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class Part:
    """what: one of the stages. place: the directory that is written or read; "" is memory.

    done, total: bytes of the parts that have reported. whole: bytes of all parts, also those that have not
    reported yet; 0: unknown. began: seconds since the epoch by the node's clock; for a restore, of its first stage.
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
        """The best estimate of the bytes in all."""
        return max(self.whole, self.total)


class PartCounter:
    """A part that grows. Written by one thread; other threads may see an earlier state."""

    def __init__(self, what: str, step: int, place: str, total: int, began: float, whole: int = 0) -> None:
        self._start = Part(what, step, place, 0, total, began, whole)
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count

    @property
    def part(self) -> Part:
        return replace(self._start, done=min(self._done, self._start.total))  # a damaged share is read twice


def combined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part for each operation, older steps first. For a restore, its last stage: no rank begins a stage before all
    have ended the one before."""
    things: dict[tuple[bool, int, str], list[Part]] = {}
    for part in parts:
        if part.what in _STAGES:  # otherwise from a newer version
            things.setdefault((part.what == WRITING, part.step, part.place), []).append(part)
    return tuple(_one(things[key]) for key in sorted(things))


def _one(parts: list[Part]) -> Part:
    what = max((part.what for part in parts), key=_STAGES.index)
    those = [part for part in parts if part.what == what]
    done, total = sum(part.done for part in those), sum(part.total for part in those)
    began, whole = min(part.began for part in parts), max(part.whole for part in those)
    return Part(what, parts[0].step, parts[0].place, done, total, began, whole)
