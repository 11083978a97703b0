"""How many steps from one save to the next: from what a save costs, and what a failure would. Pure.

A save costs the time for which it blocks the loop, and what the steps beside its writing lose. A failure costs, on
average, half of the time between two saves. Young's interval, sqrt(2 x cost x mean time between failures), makes the
sum least (J. W. Young, CACM 1974; the further terms of Daly, FGCS 2006, matter only where a save costs nearly as much
as failures lie apart, and there the bound below is far longer). The longest of these holds:

- Young's interval, `LONGEST` at most: the time between failures is an estimate. It waits for the second save, since a
  first one pays for fresh memory and may cost ten times as much as those that follow;
- what keeps the cost within `overhead` of the time (the bound of CheckFreq, FAST 2021), `LONGEST` at most;
- `ROOM` times the time that a save takes to be written: none waits for the one before it, the file system is also
  others', and there are steps left beside no write, to compare with.

Medians of the last saves, and a band within which nothing changes: one slow save or a busy neighbour moves nothing.
Only operations that IEEE 754 rounds correctly, so that all ranks come to the same result from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import median

START = 10  # steps before anything is measured: enough for a median of step times, and little to lose
WINDOW = 5  # saves that medians are taken over
LONGEST = 3600.0  # seconds of work that one failure may cost, however rare failures seem to be
ROOM = 2.0
NEARLY, FAR = 1.1, 1.5  # how much too short, or too long, the interval may be before it is changed
_SHORTEST_STEP = 1e-6  # seconds


@dataclass(frozen=True)
class Measured:
    """What a rank measured up to one save, in seconds. None: not known.

    stall: the loop was blocked to copy the state. step: a usual step. slowed: what all steps beside the last write took
    beyond usual ones (below zero: noise alone). write: from the copy to the published checkpoint.
    """

    stall: float | None = None
    step: float | None = None
    slowed: float | None = None
    write: float | None = None


@dataclass(frozen=True)
class Cadence:
    """The interval that holds, why, and what was measured so far.

    overhead: the part of the time that saves may cost. mtbf: mean time between failures, s. saves: how many stalls were
    measured. stalls, slowed, writes: of the last saves, newest last, s.
    """

    overhead: float
    mtbf: float
    steps: int = START
    reason: str = "nothing is measured yet"
    saves: int = 0
    step: float | None = None
    stalls: tuple[float, ...] = ()
    slowed: tuple[float, ...] = ()
    writes: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        return f"{_steps(self.steps)}: {self.reason}"


def slowest(ranks: Sequence[Measured]) -> Measured:
    """What the training as a whole saw: it waits for its slowest rank. Their steps are the same."""
    steps = [r.step for r in ranks if r.step is not None]
    return Measured(
        _most([r.stall for r in ranks]),
        median(steps) if steps else None,
        _most([r.slowed for r in ranks]),
        _most([r.write for r in ranks]),
    )


def retune(cadence: Cadence, seen: Measured) -> Cadence:
    """The cadence after one more save. Before a stall and a step were measured the interval stays what it is."""
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
    seconds, reason = _wanted(grown)
    wanted = seconds / grown.step
    if not first and cadence.steps / FAR <= wanted <= cadence.steps * NEARLY:
        return grown
    steps = _round_up(max(1, ceil(wanted)))
    return grown if steps == cadence.steps and not first else replace(grown, steps=steps, reason=reason)


def _wanted(cadence: Cadence) -> tuple[float, str]:
    """Seconds between two saves, and why."""
    stall, slowed = median(cadence.stalls), max(0.0, median(cadence.slowed)) if cadence.slowed else 0.0
    cost = stall + slowed
    costs = f"a save costs {_span(cost)} (stalls {_span(stall)}, slows steps by {_span(slowed)} in all)"
    bound = cost / cadence.overhead
    young = sqrt(2 * cost * cadence.mtbf) if cadence.saves > 1 else 0.0
    room = ROOM * median(cadence.writes) if cadence.writes else 0.0
    asked = f"{_percent(cadence.overhead)} of the time"
    if room >= max(min(bound, LONGEST), min(young, LONGEST)) and room > 0:
        return room, f"a save takes {_span(room / ROOM)} to be written, and that is half of the time at most"
    if bound > LONGEST:
        return LONGEST, f"{costs}, more than {asked}, but no failure may cost more than {_span(LONGEST)} of work"
    if bound >= young:
        return bound, f"{costs}: {asked}"
    if young > LONGEST:
        return LONGEST, f"{costs}, and no failure may cost more than {_span(LONGEST)} of work"
    return young, f"{costs}, and a failure comes every {_span(cadence.mtbf)}: least time lost to both"


def _with(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    return values if value is None else (*values, value)[-WINDOW:]


def _most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _round_up(steps: int) -> int:
    """To two digits: 1,234 says no more than 1,300."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit


def _steps(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
