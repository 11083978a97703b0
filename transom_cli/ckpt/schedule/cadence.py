"""How many steps from one save to the next, and how many saves from one durable one to the next. Pure.

The seconds and the reasons come from `ckpt.pace.intervals`. Here they become numbers of steps and saves, from medians
of the last saves, with a band within which nothing changes: one slow save or a busy neighbour moves nothing. All ranks
come to the same result from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from transom_cli.ckpt.schedule import intervals
from transom_cli.ckpt.schedule.intervals import Costs

START = 10  # steps before anything is measured: enough for a median of step times, and little to lose
WINDOW = 5  # saves that medians are taken over
NEARLY, FAR = 1.1, 1.5  # how much too short, or too long, an interval may be before it is changed
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
    """The intervals that hold, why, and what was measured so far.

    overhead: the part of the time that saves may cost. mtbf: mean time between failures, s. lost: between those that
    memory does not survive, s; None: `persist` stays. persist: of so many saves one becomes durable; None: that goes by
    the clock. fixed: `steps` stays. saves: how many stalls were measured. stalls, slowed, writes: of the last saves,
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
    """What the training as a whole saw: it waits for its slowest rank. Their steps are the same."""
    steps = [r.step for r in ranks if r.step is not None]
    return Measured(
        _most([r.stall for r in ranks]),
        median(steps) if steps else None,
        _most([r.slowed for r in ranks]),
        _most([r.write for r in ranks]),
    )


def retune(cadence: Cadence, seen: Measured) -> Cadence:
    """The cadence after one more save. Before a stall and a step were measured the intervals stay what they are."""
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
    """0 while the only stall is the first one's, on which Young's interval must not rest."""
    return cadence.mtbf if cadence.saves > 1 else 0.0


def _fitted(held: int, wanted: float, *, freely: bool) -> int:
    """The number that is to hold: the one that does, unless it is too far from what is wanted."""
    if not freely and held / FAR <= wanted <= held * NEARLY:
        return held
    return _round_up(max(1, ceil(wanted)))


def _with(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    return values if value is None else (*values, value)[-WINDOW:]


def _most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _round_up(steps: int) -> int:
    """To two digits: 1,234 says no more than 1,300."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit


def every(steps: int) -> str:
    """In words."""
    return "every step" if steps == 1 else f"every {steps} steps"
