"""When a Checkpointer saves: every n-th step (`Every`), or as often as it finds best (`Auto`).

Called from the training thread, except `agree`. All ranks get the same answers to the same calls.

How the ranks agree on a cadence: once they have found that all of them commit the same scheduled save, each sends what
it measured, and rank 0 sends the current cadence. Each rank computes the next cadence from the same numbers and from
rank 0's cadence, so ranks that diverged converge again.

The exchange runs in the background, so training may be further by then. The cadence that is settled at save n counts
from `LOOK` steps after n, or from the next save if that is sooner; each rank waits for it there. Ranks that train
together have all reached save n long before, so nothing has to wait in practice.

Saves that are not scheduled (a final checkpoint, `force`) settle nothing: not all ranks need make them.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from numbers import Integral

from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.schedule.cadence import START, Cadence, Measured, StepTimer, retune, slowest
from transom_cli.ckpt.schedule.cadence import every as every_words
from transom_cli.ckpt.schedule.failure_rate import Failures, known_failures
from transom_cli.ckpt.schedule.plan import AUTO
from transom_cli.errors import UsageError
from transom_cli.heartbeat.client import phase

LOOK = 10  # steps
PATIENCE = 5.0  # seconds to wait for the other ranks' measurements. After that, the old cadence holds until they come


@dataclass(frozen=True)
class RankReport:
    """What one rank measured up to a scheduled save."""

    step: int
    measured: Measured
    cadence: Cadence | None  # rank 0's, when this save was made


class Agreement:
    """The agreement of all ranks at one save. report: of this rank; None if the save was not scheduled."""

    def __init__(self, report: RankReport | None) -> None:
        self.report = report
        self.settled: Future[Cadence | None] = Future()
        if report is None:
            self.end()

    def end(self) -> None:
        """The commit is over: if nothing was settled, nothing will be."""
        if not self.settled.done():
            self.settled.set_result(None)

    @property
    def step(self) -> int:
        """The step of the save."""
        return -1 if self.report is None else self.report.step


_REPORT = struct.Struct("<?q4d")  # whether there is one, the step, what was measured


def _packed(note: RankReport | None) -> bytes:
    if note is None:
        return _REPORT.pack(False, 0, 0.0, 0.0, 0.0, 0.0)
    seen = note.measured
    parts = (seen.stall, seen.step, seen.slowed, seen.write)
    return _REPORT.pack(True, note.step, *(math.nan if part is None else part for part in parts))


def _measured(parts: Iterable[float]) -> Measured:
    return Measured(*(None if math.isnan(part) else part for part in parts))


class Every:
    """Saves at the multiples of `every`."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._changed = False

    @property
    def every(self) -> int:
        """Steps between saves now."""
        return self._every

    @property
    def persist(self) -> int:
        """One of how many saves becomes durable now."""
        return 1

    @property
    def words(self) -> str:
        """When it saves, in words, with the reason if it was measured."""
        return every_words(self.every)

    def take_change(self) -> bool:
        """Whether the plan has changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def next(self, done: int) -> int:
        """The step of the next save, after `done` finished steps."""
        return (done // self.every + 1) * self.every

    def due(self, step: int) -> bool:
        """Whether save(step), which is being called, is due."""
        return step % self.every == 0

    def copied(self, step: int, stall: float | None, writing: bool) -> Agreement | None:
        """A copy was made and will be committed.

        Args:
            stall: seconds that the copy blocked training; None if it failed.
            writing: an earlier save is not durable yet.
        """
        return None

    def agree(self, agreement: Agreement | None, ranks: Ranks) -> None:
        """All ranks commit one step: agree on the next cadence, in the background thread. A collective."""

    def wrote(self, seconds: float) -> None:
        """A checkpoint became durable, `seconds` after its copy."""

    def resume(self, writing: bool) -> None:
        """The call of save() returns. `writing`: something is being written."""

    def at(self, step: int) -> None:
        """Training continues from `step`."""


class Auto(Every):
    """Saves as far apart as `schedule.cadence` finds best. All ranks agree on the interval (`Agreement`).

    The first save comes START steps after the first call, or after the restored step. Measurements are not kept over a
    restart: another launch may run on other nodes, beside other jobs.
    """

    def __init__(
        self, overhead: float, failures: Failures, ranks: Ranks, say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic, *, every: int | None = None, persist: int | str = 1,
    ) -> None:  # fmt: skip
        """`every`: steps between saves, if they are given and only `persist` is to be found."""
        super().__init__(every or START)
        self._failures = failures
        self._cadence = Cadence(
            overhead, failures.mean(0.0), every or START, fixed=every is not None,
            lost=failures.mean_lost(0.0) if persist == AUTO else None,
            persist=persist if isinstance(persist, int) else 1 if persist == AUTO else None,
        )  # fmt: skip
        self._first = ranks.first
        self._say = say
        self._clock = clock
        self._began = clock()
        self._watch = StepTimer()
        self._wrote: float | None = None  # seconds that the last write took, if it made a checkpoint
        self._last = self._next = -1  # the last scheduled save, and the next; -1: no step is known yet
        self._agreement: Agreement | None = None  # of the last scheduled save, until `_look`
        self._look = 0
        self._late = False  # whether the agreement did not come in time
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

    def due(self, step: int) -> bool:
        if self._next < 0 or step < self._last:  # the first call, or a trainer that went back by itself
            self.at(step - 1)
        self._watch.stop(step, self._clock())
        if self._agreement is not None and step >= self._look:
            self._settle(self._agreement, step)
        self._due = step % self.every == 0 if self._cadence.fixed else step >= self._next
        if self._due:
            self._from(step)
        return self._due

    def copied(self, step: int, stall: float | None, writing: bool) -> Agreement:
        if self._late and self._agreement is not None:
            self._settle(self._agreement, step)
        seen = Measured(stall, self._watch.step, None if self._wrote is None else self._watch.slowed, self._wrote)
        if self._wrote is not None or not writing:  # otherwise the steps during that write are still being added up
            self._watch.saved()
        self._wrote = None
        if not self._due:
            return Agreement(None)
        cadence = self._as_of_now() if self._first else None
        self._agreement = Agreement(RankReport(step, seen, cadence))
        self._look = step + min(self._cadence.steps, LOOK)
        return self._agreement

    def agree(self, agreement: Agreement | None, ranks: Ranks) -> None:
        mine = agreement.report if agreement is not None else None
        reports = [_REPORT.unpack(data) for data in ranks.gather_bytes(_packed(mine))]
        if not all(there and step == reports[0][1] for there, step, *_ in reports):
            return
        cadence: Cadence = ranks.from_first(mine.cadence if mine is not None else None)
        if agreement is not None:
            agreement.settled.set_result(retune(cadence, slowest([_measured(one[2:]) for one in reports])))

    def wrote(self, seconds: float) -> None:
        self._wrote = seconds

    def resume(self, writing: bool) -> None:
        self._watch.go(self._clock(), writing)

    def at(self, step: int) -> None:
        if self._agreement is not None:
            self._settle(self._agreement, step)
        self._from(step)
        self._agreement, self._late = None, False
        self._watch = StepTimer()

    def _as_of_now(self) -> Cadence:
        since = self._clock() - self._began
        lost = None if self._cadence.lost is None else self._failures.mean_lost(since)
        return replace(self._cadence, mtbf=self._failures.mean(since), lost=lost)

    def _from(self, step: int) -> None:
        self._last, self._next = step, step + self._cadence.steps

    def _settle(self, agreement: Agreement, step: int) -> None:
        before = self._cadence
        with phase("checkpoint"):  # a rank that waits here is not hanging in its own step
            if wait([agreement.settled], 0.0 if self._late else PATIENCE).not_done:
                self._late = True
                return
        settled, late = agreement.settled.result(), self._late
        self._agreement, self._late = None, False
        if settled is None:
            return
        self._cadence = settled
        if late:  # the other ranks may have counted from that save for some time
            self._last = agreement.step + (max(0, step - 1 - agreement.step) // settled.steps) * settled.steps
        self._next = self._last + settled.steps
        if (settled.steps, settled.persist) != (before.steps, before.persist):
            self._say(f"saves {settled.words}")
            self._changed = True


def check(every: int | str, overhead: float) -> None:
    """Raise UsageError for values out of range."""
    if every != AUTO and (not isinstance(every, Integral) or every < 1):
        raise UsageError(f"every={every!r} must be a number of steps, at least 1, or {AUTO!r}")
    if not 0 < overhead <= 0.5:
        why = "it is the part of the training's time that saves may cost"
        raise UsageError(f"overhead={overhead!r} must be above 0 and at most 0.5", why, "0.01, the default, is 1 %")


def make(every: int | str, overhead: float, persist: int | str, ranks: Ranks, say: Callable[[str], None]) -> Every:
    """Make the schedule. A collective. Raises UsageError on all ranks if their arguments differ."""
    measured = AUTO in (every, persist)
    options = ranks.gather((every, overhead, persist) if measured else (every, None, None))
    if any(other != options[0] for other in options):
        words = ", ".join(f"rank {n} {other[0]!r}" for n, other in enumerate(options) if other not in options[:n])
        raise UsageError(
            "The ranks would save at different steps",
            f"of `every` they have: {words}"
            if len({o[0] for o in options}) > 1
            else "they differ in `overhead` or `persist`",
            "give every rank the same `every`, `overhead` and `persist`",
        )
    if not measured:
        return Every(int(every))
    failures = known_failures(ranks.size) if ranks.first else Failures(ranks.size)
    steps = None if every == AUTO else int(every)
    return Auto(overhead, failures, ranks, say, every=steps, persist=persist)
