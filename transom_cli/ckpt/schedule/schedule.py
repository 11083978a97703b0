"""When a Checkpointer saves: every n-th step (`Every`), or as often as it finds best (`Auto`).

Called from the training thread, except `agreeing`. All ranks get the same answers to the same calls.

How the ranks agree on a cadence: every rank sends what it measured along with the collectives of a commit, and rank 0
also sends the current cadence. The first collective that all ranks make for the same scheduled save settles the next
cadence. Each rank computes it from the same numbers and from rank 0's cadence, so ranks that diverged converge again.

The exchange runs in the background, so training may be further by then. The cadence that is settled at save n counts
from `LOOK` steps after n, or from the next save if that is sooner; each rank waits for it there. Ranks that train
together have all reached save n long before, so nothing has to wait in practice.

Saves that are not scheduled (a final checkpoint, `force`) settle nothing: not all ranks need make them.
"""

from __future__ import annotations

import contextlib
import math
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

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
    """What one rank measured, sent along with a scheduled save."""

    step: int
    measured: Measured
    cadence: Cadence | None  # rank 0's, when this save was made


class Agreement:
    """The agreement of all ranks over one save. Made in the training thread, settled in the background thread."""

    def __init__(self, note: RankReport | None) -> None:
        self._note = note
        self._settled: Cadence | None = None
        self._over = threading.Event()
        if note is None:  # not a scheduled save
            self._over.set()

    @property
    def note(self) -> RankReport | None:
        """What this rank still has to send; None once the ranks agree."""
        return None if self._over.is_set() else self._note

    def hear(self, notes: list[RankReport | None]) -> None:
        """Take the reports of all ranks, by rank, from one collective."""
        mine = self.note
        reports = [note for note in notes if note is not None and mine is not None and note.step == mine.step]
        if not reports or len(reports) < len(notes) or reports[0].cadence is None:
            return
        self._settled = retune(reports[0].cadence, slowest([note.measured for note in reports]))
        self._over.set()

    def end(self) -> None:
        """No more reports will come."""
        self._over.set()

    @property
    def step(self) -> int:
        """The step of the save."""
        return -1 if self._note is None else self._note.step

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the agreement. Returns whether it has ended."""
        return self._over.wait(seconds)

    def outcome(self) -> Cadence | None:
        """Wait for the agreed cadence. None if the save failed before the ranks agreed."""
        self._over.wait()
        return self._settled


_REPORT = struct.Struct("<?q4d")  # whether there is one, the step, what was measured


def _packed(note: RankReport | None) -> bytes:
    if note is None:
        return _REPORT.pack(False, 0, 0.0, 0.0, 0.0, 0.0)
    seen = note.measured
    parts = (seen.stall, seen.step, seen.slowed, seen.write)
    return _REPORT.pack(True, note.step, *(math.nan if part is None else part for part in parts))


def _measured(parts: Iterable[float]) -> Measured:
    return Measured(*(None if math.isnan(part) else part for part in parts))


class AgreeingRanks(Ranks):
    """The same ranks, whose `gather` and `gather_bytes` also carry reports. Used in the background thread only."""

    def __init__(self, ranks: Ranks) -> None:
        self.size, self.rank = ranks.size, ranks.rank
        self._own, self.attendance = ranks._own, ranks.attendance  # no process group of its own
        self.agreement: Agreement | None = None

    def gather(self, value: Any, *, what: str = "", patience: float | None = None) -> list[Any]:
        note = self.agreement.note if self.agreement is not None else None
        reports = super().gather((value, note), what=what, patience=patience)
        if self.agreement is not None:
            self.agreement.hear([note for _, note in reports])
        return [value for value, _ in reports]

    def gather_bytes(self, data: bytes, what: str = "", patience: float | None = None) -> list[bytes]:
        """Every rank sees all reports. If they are complete, all ranks take rank 0's cadence too."""
        note = self.agreement.note if self.agreement is not None else None
        answers = super().gather_bytes(data + _packed(note), what, patience)
        reports = [_REPORT.unpack_from(answer, len(data)) for answer in answers]
        if all(there and step == reports[0][1] for there, step, *_ in reports):
            cadence = self.from_first(note.cadence if note is not None else None)
            if self.agreement is not None:
                measured = enumerate(reports)
                self.agreement.hear(
                    [RankReport(one[1], _measured(one[2:]), None if rank else cadence) for rank, one in measured]
                )
        return [answer[: len(data)] for answer in answers]


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

    def writers(self, ranks: Ranks) -> Ranks:
        """The ranks that the committer uses."""
        return ranks

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

    @contextlib.contextmanager
    def agreeing(self, agreement: Agreement | None) -> Iterator[None]:
        """Around a commit, in the background thread: the ranks agree on the next cadence with its collectives."""
        yield

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
        self._carrier = AgreeingRanks(ranks)
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

    def writers(self, ranks: Ranks) -> Ranks:
        return self._carrier

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
        cadence = self._as_of_now() if self._carrier.first else None
        self._agreement = Agreement(RankReport(step, seen, cadence))
        self._look = step + min(self._cadence.steps, LOOK)
        return self._agreement

    @contextlib.contextmanager
    def agreeing(self, agreement: Agreement | None) -> Iterator[None]:
        self._carrier.agreement = agreement
        try:
            yield
        finally:
            if agreement is not None:
                agreement.end()

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
            if not agreement.wait(0.0 if self._late else PATIENCE):
                self._late = True
                return
        settled, late = agreement.outcome(), self._late
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
