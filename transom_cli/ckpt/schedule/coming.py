"""Which saves come next, as rank 0 has planned them, for whoever looks. Pure; as JSON it is part of an account."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coming:
    """step: of the next save; the others follow it `every` steps apart.

    persist: of so many saves one becomes durable, `durable`: the step of the next one that does; or both None, and it
    is the first save from `durable_from` on (seconds since the epoch, by the clock of rank 0's node).
    """

    step: int
    every: int
    persist: int | None = None
    durable: int | None = None
    durable_from: float | None = None

    def after(self, done: int) -> int:
        """The first save beyond step `done`, also when what was planned is behind."""
        return _beyond(self.step, self.every, done)

    def durable_after(self, done: int) -> int | None:
        """The first one that becomes durable; None where that goes by the clock."""
        if self.durable is None or self.persist is None:
            return None
        return _beyond(self.durable, self.every * self.persist, done)


def _beyond(first: int, apart: int, done: int) -> int:
    return first if done < first else first + ((done - first) // max(1, apart) + 1) * max(1, apart)
