"""How many seconds between saves, and between durable checkpoints, and why. Pure.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

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
