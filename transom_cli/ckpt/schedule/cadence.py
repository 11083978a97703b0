"""How many steps between saves, and how many saves between durable ones. Pure; reads no clock.

The seconds and the reasons come from `schedule.intervals`. Here they become numbers of steps and saves, from medians of
the last saves, with a band in which nothing changes: one slow save or a busy neighbour has no effect. All ranks get the
same result from the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from transom_cli.ckpt.schedule import intervals
from transom_cli.ckpt.schedule.intervals import Costs

START = 10  # steps before the first save: enough for a median of step times, with little to lose
WINDOW = 5  # saves that medians are taken over
NEARLY, FAR = 1.1, 1.5  # factors by which an interval may be too short, or too long, before it changes
_SHORTEST_STEP = 1e-6  # seconds


@dataclass(frozen=True)
class Measured:
    """What a rank measured up to one save, in seconds. None: unknown.

    stall: training was blocked to copy the state. step: a usual step. slowed: extra time of all steps during the last
    write (below zero: noise). write: from the copy to the published checkpoint.
    """

    stall: float | None = None
    step: float | None = None
    slowed: float | None = None
    write: float | None = None


@dataclass(frozen=True)
class Cadence:
    """The current intervals, the reasons, and the measurements so far.

    overhead: the part of the time that saves may cost. mtbf: mean time between failures, s. lost: the same for failures
    that memory does not survive, s; None: `persist` is fixed. persist: one of how many saves becomes durable; None: the
    clock decides. fixed: `steps` is fixed. saves: number of measured stalls. stalls, slowed, writes: of the last saves,
    newest last, s.
    """

    overhead: float
    mtbf: float
    steps: int = START
    reason: str = "nothing is measured yet"
    lost: float | None = None
    persist: int | None = 1
    why: str = ""
    fixed: bool = False
    saves: int = 0
    step: float | None = None
    stalls: tuple[float, ...] = ()
    slowed: tuple[float, ...] = ()
    writes: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        steps = f"{every(self.steps)}: {self.reason}" if not self.fixed else every(self.steps)
        if not self.why or self.persist is None:
            return steps
        which = "each of them is" if self.persist == 1 else f"one of {self.persist} is"
        return f"{steps}; {which} made durable: {self.why}"


def slowest(ranks: Sequence[Measured]) -> Measured:
    """Combine the ranks' measurements: training waits for its slowest rank. Steps take equally long on all ranks."""
    steps = [r.step for r in ranks if r.step is not None]
    return Measured(
        _most([r.stall for r in ranks]),
        median(steps) if steps else None,
        _most([r.slowed for r in ranks]),
        _most([r.write for r in ranks]),
    )


def retune(cadence: Cadence, seen: Measured) -> Cadence:
    """The cadence after one more save. Until a stall and a step were measured, the intervals stay."""
    first = cadence.saves < 2  # the second save's stall replaces the first one's
    grown = replace(
        cadence,
        saves=cadence.saves + (seen.stall is not None),
        step=cadence.step if seen.step is None else max(seen.step, _SHORTEST_STEP),
        stalls=_with(() if first and seen.stall is not None else cadence.stalls, seen.stall),
        slowed=_with(cadence.slowed, seen.slowed),
        writes=_with(cadence.writes, seen.write),
    )
    if not grown.stalls or grown.step is None:
        return grown
    if not grown.fixed:
        seconds, reason = _wanted(grown)
        steps = _fitted(cadence.steps, seconds / grown.step, freely=first)
        grown = grown if steps == cadence.steps and not first else replace(grown, steps=steps, reason=reason)
    if grown.lost is None or not grown.writes or grown.persist is None or grown.step is None:
        return grown
    seconds, why = intervals.durable(_costs(grown), grown.overhead, _mtbf(grown), grown.lost)
    freely = first or not cadence.writes or grown.steps != cadence.steps
    persist = _fitted(grown.persist, seconds / (grown.steps * grown.step), freely=freely)
    return grown if persist == cadence.persist and not freely else replace(grown, persist=persist, why=why)


def _wanted(cadence: Cadence) -> tuple[float, str]:
    """Seconds between two saves, and why."""
    costs, overhead, mtbf = _costs(cadence), cadence.overhead, _mtbf(cadence)
    if cadence.lost is not None:
        return intervals.snapshots(costs, overhead, mtbf, cadence.lost)
    if cadence.persist is None:
        return intervals.one(Costs(costs.stall), overhead, mtbf)
    return intervals.one(costs, overhead, mtbf, cadence.persist)


def _costs(cadence: Cadence) -> Costs:
    return Costs(
        median(cadence.stalls),
        max(0.0, median(cadence.slowed)) if cadence.slowed else None,
        median(cadence.writes) if cadence.writes else None,
    )


def _mtbf(cadence: Cadence) -> float:
    """0 while only the first stall is known, which Young's interval must not be based on."""
    return cadence.mtbf if cadence.saves > 1 else 0.0


def _fitted(held: int, wanted: float, *, freely: bool) -> int:
    """Keep the current number, unless it is too far from the wanted one."""
    if not freely and held / FAR <= wanted <= held * NEARLY:
        return held
    return _round_up(max(1, ceil(wanted)))


def _with(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    return values if value is None else (*values, value)[-WINDOW:]


def _most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _round_up(steps: int) -> int:
    """Round up to two digits: 1,234 is no more precise than 1,300."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit


def every(steps: int) -> str:
    """The interval in words."""
    return "every step" if steps == 1 else f"every {steps} steps"


STEPS = 64  # steps for the median
LONGEST_STEP = 4.0  # usual steps that one step during a write counts for at most: it may contain an evaluation


class StepTimer:
    """Seconds per step, from the moments at which a trainer calls; steps during a write are kept apart.

    `stop` when the trainer calls, `go` when it continues, `saved` when a copy was made that will be written.
    """

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=STEPS)
        self._clear: deque[float] = deque(maxlen=STEPS)  # during no write; empty if every step is saved
        self._step = 0
        self._from: float | None = None
        self._beside = False
        self._usual: float | None = None  # when the write began
        self._slowed = 0.0

    def stop(self, step: int, at: float) -> None:
        """Steps up to `step` are done. A call without a new step measures nothing."""
        count = step - self._step
        if self._from is not None and count > 0:
            seconds = max(0.0, at - self._from)
            self._all.append(seconds / count)
            if not self._beside:
                self._clear.append(seconds / count)
            elif self._usual is not None:
                usual = self._usual * count
                self._slowed += min(seconds, LONGEST_STEP * usual) - usual
        self._step, self._from = step, None

    def go(self, at: float, beside: bool) -> None:
        """Training continues. beside: something is being written."""
        self._from, self._beside = at, beside

    def saved(self) -> None:
        self._usual = median(self._clear) if self._clear else None
        self._slowed = 0.0

    @property
    def step(self) -> float | None:
        """Median seconds of a step; None if there was none yet."""
        return median(self._all) if self._all else None

    @property
    def slowed(self) -> float | None:
        """Extra seconds of the steps during the last write; None if the usual step was unknown."""
        return None if self._usual is None else self._slowed
