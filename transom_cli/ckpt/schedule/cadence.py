"""How many steps between saves, and how many saves between durable ones, and why. Pure; reads no clock.

A save costs the time for which it blocks training; one that becomes durable also slows the steps during its write. A
failure costs, on average, half the time between two saves. If the nodes' memory does not survive it, it costs half the
time between two durable checkpoints. Young's interval, sqrt(2 x cost x mean time between failures), minimises the sum
(J. W. Young, CACM 1974; the further terms of Daly, FGCS 2006, matter only if a save costs nearly as much as the time
between failures, where the bound below is far longer). The longest of these holds:

- Young's interval, at most `LONGEST`: the time between failures is an estimate. It is used from the second save on,
  since the first pays for fresh memory and may cost ten times as much as later ones;
- the interval that keeps the cost within `overhead` of the time (the bound of CheckFreq, FAST 2021), at most `LONGEST`;
- for durable ones, `ROOM` times the time of a write: no write waits for the one before it, the file system also serves
  others, and some steps run during no write, for comparison.

If both are chosen, the two intervals share `overhead` as Young's intervals would: both are stretched by one factor,
which minimises the time lost under that bound. For saves every failure counts, since the next failure's kind is
unknown. Only operations that IEEE 754 rounds correctly are used, so that all ranks get the same result.

Seconds become numbers of steps and saves from medians of the last saves, with a band in which nothing changes: one slow
save or a busy neighbour has no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import median

LONGEST = 3600.0  # seconds of work that one failure may cost, however rare failures seem to be
ROOM = 2.0


@dataclass(frozen=True)
class Costs:
    """Seconds of one save: training blocked, steps slowed during the write (None: unknown), until it is durable."""

    stall: float
    slowed: float | None = None
    write: float | None = None


def one(costs: Costs, overhead: float, mtbf: float, nth: int = 1) -> tuple[float, str]:
    """Seconds between saves, if every `nth` becomes durable, and why. mtbf: 0 ignores Young's interval."""
    slowed, write = (costs.slowed or 0.0) / nth, (costs.write or 0.0) / nth
    cost = costs.stall + slowed
    words = f"a save costs {span(cost)} (stalls {span(costs.stall)}, slows steps by {span(slowed)} in all)"
    bound, young, room = cost / overhead, sqrt(2 * cost * mtbf), ROOM * write
    if room >= max(min(bound, LONGEST), min(young, LONGEST)) and room > 0:
        each = "" if nth == 1 else f", and one of {nth} is durable"
        return room, f"a save takes {span(write * nth)} to be written{each}, and that is half of the time at most"
    return _chosen(words, bound, young, overhead, f"a failure comes every {span(mtbf)}")


def snapshots(costs: Costs, overhead: float, mtbf: float, lost: float) -> tuple[float, str]:
    """Seconds between saves, if `durable` decides which become durable, and why. mtbf and lost: as there."""
    share = overhead * _share(costs, mtbf or lost, lost)
    words = f"a save stalls {span(costs.stall)}"
    bound = costs.stall / share if share else 0.0
    return _chosen(words, bound, sqrt(2 * costs.stall * mtbf), overhead, f"a failure comes every {span(mtbf)}")


def durable(costs: Costs, overhead: float, mtbf: float, lost: float) -> tuple[float, str]:
    """Seconds between durable checkpoints, and why.

    Args:
        mtbf: seconds between failures (0: see `one`).
        lost: seconds between failures that memory does not survive.
    """
    slowed, room = costs.slowed or 0.0, ROOM * (costs.write or 0.0)
    share = overhead * (1.0 - _share(costs, mtbf or lost, lost))
    bound, young = slowed / share if share else 0.0, sqrt(2 * slowed * lost)
    if room >= max(min(bound, LONGEST), min(young, LONGEST)):
        return room, f"one takes {span(costs.write or 0.0)} to be written, and that is half of the time at most"
    words = f"one slows steps by {span(slowed)} in all"
    return _chosen(words, bound, young, overhead, f"a failure that memory does not survive every {span(lost)}")


def _share(costs: Costs, mtbf: float, lost: float) -> float:
    """The part of the overhead for stalls that minimises the time lost, as Young's intervals divide it."""
    stall, slowed = sqrt(costs.stall / mtbf), sqrt((costs.slowed or 0.0) / lost)
    return stall / (stall + slowed) if stall + slowed else 1.0


def _chosen(costs: str, bound: float, young: float, overhead: float, failures: str) -> tuple[float, str]:
    target = f"{_percent(overhead)} of the time"
    if bound > LONGEST:
        return LONGEST, f"{costs}, more than {target}, but no failure may cost more than {span(LONGEST)} of work"
    if bound >= young:
        return bound, f"{costs}: {target}"
    if young > LONGEST:
        return LONGEST, f"{costs}, and no failure may cost more than {span(LONGEST)} of work"
    return young, f"{costs}, and {failures}: least time lost to both"


def span(seconds: float) -> str:
    """A duration in words."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


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
    seconds, why = durable(_costs(grown), grown.overhead, _mtbf(grown), grown.lost)
    freely = first or not cadence.writes or grown.steps != cadence.steps
    persist = _fitted(grown.persist, seconds / (grown.steps * grown.step), freely=freely)
    return grown if persist == cadence.persist and not freely else replace(grown, persist=persist, why=why)


def _wanted(cadence: Cadence) -> tuple[float, str]:
    """Seconds between two saves, and why."""
    costs, overhead, mtbf = _costs(cadence), cadence.overhead, _mtbf(cadence)
    if cadence.lost is not None:
        return snapshots(costs, overhead, mtbf, cadence.lost)
    if cadence.persist is None:
        return one(Costs(costs.stall), overhead, mtbf)
    return one(costs, overhead, mtbf, cadence.persist)


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
