"""At which steps a Checkpointer saves: at every n-th (`Every`), or as it finds best (`Auto`); and of how many saves
one becomes durable, where that is to be found too.

Called from the training's thread, but for `carry`. All ranks get the same answers for the same calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import TypeVar

from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.schedule.cadence import START, Cadence, Measured
from transom_cli.ckpt.schedule.cadence import every as every_words
from transom_cli.ckpt.schedule.failrate import Failures, known_failures
from transom_cli.ckpt.schedule.meeting import LOOK, Carrier, Meeting, Note
from transom_cli.ckpt.schedule.stopwatch import Stopwatch
from transom_cli.errors import UsageError
from transom_cli.heartbeat.client import phase

AUTO = "auto"

T = TypeVar("T")


class Every:
    """At the multiples of `every`."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.changed: Callable[[], None] = lambda: None  # called when what holds now is not what held before

    @property
    def every(self) -> int:
        """Steps between saves, as it holds now."""
        return self._every

    @property
    def persist(self) -> int:
        """Of so many saves one becomes durable, as it holds now, where this is asked."""
        return 1

    @property
    def words(self) -> str:
        """When it saves, as it holds now, and where that was found, why."""
        return every_words(self.every)

    def next(self, done: int) -> int:
        """The step of the next save, as it holds now, with `done` steps behind."""
        return (done // self.every + 1) * self.every

    def writers(self, ranks: Ranks) -> Ranks:
        """The ranks as the writer is to see them."""
        return ranks

    def due(self, step: int) -> bool:
        """save(step) is being called: is it one to make?"""
        return step % self.every == 0

    def copied(self, step: int, stall: float | None, writing: bool) -> Meeting | None:
        """A copy was made that is about to be written. `stall`: what that took, s; None: it failed. `writing`: one
        before it is not durable yet."""
        return None

    def carry(self, meeting: Meeting | None, write: Callable[[], T]) -> T:
        """In the background: all ranks meet over what was copied. Returns what `write` does."""
        return write()

    def wrote(self, seconds: float) -> None:
        """A checkpoint became durable, so long after the copy."""

    def resume(self, writing: bool) -> None:
        """The call of save() is over. `writing`: something is being written."""

    def at(self, step: int) -> None:
        """The training goes on from `step`."""


class Auto(Every):
    """As far apart as `ckpt.pace.cadence` finds best; how all ranks come to the same is told in `ckpt.pace.meeting`.

    The first save is made START steps after the first call, or after what was restored. What was learned is not kept
    over a restart: another launch may run on other nodes, beside other neighbours.
    """

    def __init__(
        self, overhead: float, failures: Failures, ranks: Ranks, say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic, *, every: int | None = None, persist: int | str = 1,
    ) -> None:  # fmt: skip
        """`every`: steps between saves, where these are given and `persist` is to be found."""
        super().__init__(every or START)
        self._failures = failures
        self._cadence = Cadence(
            overhead, failures.mean(0.0), every or START, fixed=every is not None,
            lost=failures.mean_lost(0.0) if persist == AUTO else None,
            persist=persist if isinstance(persist, int) else 1 if persist == AUTO else None,
        )  # fmt: skip
        self._carrier = Carrier(ranks)
        self._say = say
        self._clock = clock
        self._began = clock()
        self._watch = Stopwatch()
        self._wrote: float | None = None  # seconds that the last write took, if it made a checkpoint
        self._last = self._next = -1  # the last scheduled save, and the next; -1: no step is known yet
        self._meeting: Meeting | None = None  # of the last scheduled save, until `_look`
        self._look = 0
        self._due = False

    @property
    def every(self) -> int:
        return self._cadence.steps

    @property
    def persist(self) -> int:
        return self._cadence.persist or 1

    @property
    def words(self) -> str:
        return self._cadence.words

    def next(self, done: int) -> int:
        if self._cadence.fixed:
            return super().next(done)
        return self._next if self._next > done else done + self.every

    def writers(self, ranks: Ranks) -> Ranks:
        return self._carrier

    def due(self, step: int) -> bool:
        if self._next < 0 or step < self._last:  # the first call, or a trainer that went back by itself
            self.at(step - 1)
        self._watch.stop(step, self._clock())
        if self._meeting is not None and step >= self._look:
            self._settle(self._meeting)
        self._due = step % self.every == 0 if self._cadence.fixed else step >= self._next
        if self._due:
            self._from(step)
        return self._due

    def copied(self, step: int, stall: float | None, writing: bool) -> Meeting:
        seen = Measured(stall, self._watch.step, None if self._wrote is None else self._watch.slowed, self._wrote)
        if self._wrote is not None or not writing:  # else the steps beside a write that goes on are still added up
            self._watch.saved()
        self._wrote = None
        if not self._due:
            return Meeting(None)
        cadence = self._as_of_now() if self._carrier.first else None
        self._meeting = Meeting(Note(step, seen, cadence))
        self._look = step + min(self._cadence.steps, LOOK)
        return self._meeting

    def carry(self, meeting: Meeting | None, write: Callable[[], T]) -> T:
        self._carrier.meeting = meeting
        try:
            return write()
        finally:
            if meeting is not None:
                meeting.end()

    def wrote(self, seconds: float) -> None:
        self._wrote = seconds

    def resume(self, writing: bool) -> None:
        self._watch.go(self._clock(), writing)

    def at(self, step: int) -> None:
        if self._meeting is not None:
            self._settle(self._meeting)
        self._from(step)
        self._watch = Stopwatch()

    def _as_of_now(self) -> Cadence:
        since = self._clock() - self._began
        lost = None if self._cadence.lost is None else self._failures.mean_lost(since)
        return replace(self._cadence, mtbf=self._failures.mean(since), lost=lost)

    def _from(self, step: int) -> None:
        self._last, self._next = step, step + self._cadence.steps

    def _settle(self, meeting: Meeting) -> None:
        self._meeting, before = None, self._cadence
        with phase("checkpoint"):  # a rank that waits here is not hanging in its own step
            settled = meeting.outcome()
        if settled is None:
            return
        self._cadence = settled
        self._next = self._last + settled.steps
        if (settled.steps, settled.persist) != (before.steps, before.persist):
            self._say(f"saves {settled.words}")
            self.changed()


def check(every: int | str, overhead: float) -> None:
    """Raises UsageError for what cannot be asked for."""
    if every != AUTO and (not isinstance(every, Integral) or every < 1):
        raise UsageError(f"every={every!r} must be a number of steps, at least 1, or {AUTO!r}")
    if not 0 < overhead <= 0.5:
        why = "it is the part of the training's time that saves may cost"
        raise UsageError(f"overhead={overhead!r} must be above 0 and at most 0.5", why, "0.01, the default, is 1 %")


def make(every: int | str, overhead: float, persist: int | str, ranks: Ranks, say: Callable[[str], None]) -> Every:
    """The schedule that was asked for. A collective. Raises UsageError, on all ranks alike, where they differ."""
    measured = AUTO in (every, persist)
    asked = ranks.gather((every, overhead, persist) if measured else (every, None, None))
    if any(other != asked[0] for other in asked):
        words = ", ".join(f"rank {n} {other[0]!r}" for n, other in enumerate(asked) if other not in asked[:n])
        raise UsageError(
            "The ranks would save at different steps",
            f"of `every` they have: {words}"
            if len({o[0] for o in asked}) > 1
            else "they differ in `overhead` or `persist`",
            "give every rank the same `every`, `overhead` and `persist`",
        )
    if not measured:
        return Every(int(every))
    failures = known_failures(ranks.size) if ranks.first else Failures(ranks.size)
    steps = None if every == AUTO else int(every)
    return Auto(overhead, failures, ranks, say, every=steps, persist=persist)
