"""How long from one save to the next, and from one durable checkpoint to the next, in seconds, and why. Pure.

A save costs the time for which it blocks the loop, and one that becomes durable also what the steps beside its writing
lose. A failure costs, on average, half of the time between two saves; one that the nodes' memory does not survive, half
of that between two durable checkpoints. Young's interval, sqrt(2 x cost x mean time between failures), makes the
sum least (J. W. Young, CACM 1974; the further terms of Daly, FGCS 2006, matter only where a save costs nearly as much
as failures lie apart, and there the bound below is far longer). The longest of these holds:

- Young's interval, `LONGEST` at most: the time between failures is an estimate. It waits for the second save, since a
  first one pays for fresh memory and may cost ten times as much as those that follow;
- what keeps the cost within `overhead` of the time (the bound of CheckFreq, FAST 2021), `LONGEST` at most;
- for durable ones `ROOM` times the time that one takes to be written: none waits for the one before it, the file system
  is also others', and there are steps left beside no write, to compare with.

Where both are chosen the two intervals share `overhead`, each as Young's intervals would: both are stretched by one
factor, which is the least time lost under that bound. For the saves every failure counts, since nobody knows which
kind comes next. Only operations that IEEE 754 rounds correctly, so that all ranks come to the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

LONGEST = 3600.0  # seconds of work that one failure may cost, however rare failures seem to be
ROOM = 2.0


@dataclass(frozen=True)
class Costs:
    """Of one save, in seconds: of the loop, of steps beside the write (None: not known), and until it is durable."""

    stall: float
    slowed: float | None = None
    write: float | None = None


def one(costs: Costs, overhead: float, mtbf: float, nth: int = 1) -> tuple[float, str]:
    """Seconds between two saves of which every `nth` becomes durable, and why. `mtbf` 0: Young's does not count yet."""
    slowed, write = (costs.slowed or 0.0) / nth, (costs.write or 0.0) / nth
    cost = costs.stall + slowed
    words = f"a save costs {span(cost)} (stalls {span(costs.stall)}, slows steps by {span(slowed)} in all)"
    bound, young, room = cost / overhead, sqrt(2 * cost * mtbf), ROOM * write
    if room >= max(min(bound, LONGEST), min(young, LONGEST)) and room > 0:
        each = "" if nth == 1 else f", and one of {nth} is durable"
        return room, f"a save takes {span(write * nth)} to be written{each}, and that is half of the time at most"
    return _chosen(words, bound, young, overhead, f"a failure comes every {span(mtbf)}")


def snapshots(costs: Costs, overhead: float, mtbf: float, lost: float) -> tuple[float, str]:
    """Seconds between two saves where `durable` says which become durable. `mtbf` and `lost` as there."""
    share = overhead * _share(costs, mtbf or lost, lost)
    words = f"a save stalls {span(costs.stall)}"
    bound = costs.stall / share if share else 0.0
    return _chosen(words, bound, sqrt(2 * costs.stall * mtbf), overhead, f"a failure comes every {span(mtbf)}")


def durable(costs: Costs, overhead: float, mtbf: float, lost: float) -> tuple[float, str]:
    """Seconds between two durable checkpoints, and why. `mtbf`: seconds between failures (0: see `one`), `lost`:
    between those that memory does not survive."""
    slowed, room = costs.slowed or 0.0, ROOM * (costs.write or 0.0)
    share = overhead * (1.0 - _share(costs, mtbf or lost, lost))
    bound, young = slowed / share if share else 0.0, sqrt(2 * slowed * lost)
    if room >= max(min(bound, LONGEST), min(young, LONGEST)):
        return room, f"one takes {span(costs.write or 0.0)} to be written, and that is half of the time at most"
    words = f"one slows steps by {span(slowed)} in all"
    return _chosen(words, bound, young, overhead, f"a failure that memory does not survive every {span(lost)}")


def _share(costs: Costs, mtbf: float, lost: float) -> float:
    """The part of the overhead that stalls have where the time lost is least: as Young's intervals divide it."""
    stall, slowed = sqrt(costs.stall / mtbf), sqrt((costs.slowed or 0.0) / lost)
    return stall / (stall + slowed) if stall + slowed else 1.0


def _chosen(costs: str, bound: float, young: float, overhead: float, failures: str) -> tuple[float, str]:
    asked = f"{_percent(overhead)} of the time"
    if bound > LONGEST:
        return LONGEST, f"{costs}, more than {asked}, but no failure may cost more than {span(LONGEST)} of work"
    if bound >= young:
        return bound, f"{costs}: {asked}"
    if young > LONGEST:
        return LONGEST, f"{costs}, and no failure may cost more than {span(LONGEST)} of work"
    return young, f"{costs}, and {failures}: least time lost to both"


def span(seconds: float) -> str:
    """In words."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
