"""How long to keep a node away: its failure rate after a return, against what its absence costs. Pure.

A node that was at fault and returns fails again far more often than others, and the excess fades over weeks. `Hazard`
holds failures and exposure by the time since the return: a gamma-Poisson model, in which a site's own returns are added
to the published ones. Nodes that failed more often within the last month fail more often again: `Hazard.repeats` has
that factor. While the expected cost of a failure exceeds the value of the node's work, it stays away.

`PUBLISHED` is computed from 400 GPU servers over 348 days (InfiniteHBD trace, StepFun, SIGCOMM 2025), without stress
tests. Its nodes had been repaired. Part of its first hours shows the repair workflow: a repair that did not help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp

HOUR, DAY = 3600.0, 86400.0
ENDS = (HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 14 * DAY, 30 * DAY)  # of the periods after a return
RECENT = 30 * DAY  # earlier failures of a node count for so long


@dataclass(frozen=True)
class Use:
    """A node was in use from `begin` to `end` seconds after a return."""

    end: float
    failed: bool  # it failed at the end
    begin: float = 0.0
    recent: int = 0  # how many failures it had had within `RECENT`, before the one from which it returned


@dataclass(frozen=True)
class Hazard:
    """What is known about nodes that returned.

    Attributes:
        failures, seconds: Failures and seconds of use in each period of `ENDS`.
    """

    failures: tuple[float, ...]
    seconds: tuple[float, ...]
    base: float  # failures per second of nodes without an outage
    # (failures, failures expected at the rates of all) after 0, 1, and 2 or more recent failures
    repeats: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * 3

    def updated(self, uses: Iterable[Use]) -> Hazard:
        """Add a site's own nodes."""
        uses = tuple(uses)
        failures, seconds = list(self.failures), list(self.seconds)
        for use in uses:
            for n, (begin, end) in enumerate(_PERIODS):
                seconds[n] += max(0.0, min(end, use.end) - max(begin, use.begin))
                failures[n] += use.failed and begin <= use.end < end
        found = replace(self, failures=tuple(failures), seconds=tuple(seconds))
        repeats = [list(pair) for pair in self.repeats]
        for use in uses:
            pair = repeats[min(use.recent, len(repeats) - 1)]
            pair[0] += use.failed and use.end < ENDS[-1]
            pair[1] += sum(
                rate * max(0.0, min(end, use.end) - max(begin, use.begin))
                for (begin, end), rate in zip(_PERIODS, found.rates(), strict=True)
            )
        return replace(found, repeats=tuple((failed, expected) for failed, expected in repeats))

    def rates(self, recent: int | None = None) -> tuple[float, ...]:
        """Return failures per second in each period; of a node with this number of recent failures, or of all nodes."""
        factor = 1.0
        if recent is not None:
            failed, expected = self.repeats[min(recent, len(self.repeats) - 1)]
            factor = (WEIGHT + failed) / (WEIGHT + expected)
        pairs = zip(self.failures, self.seconds, strict=True)
        return tuple(factor * n / t if t else self.base for n, t in pairs)


_PERIODS = tuple(zip((0.0, *ENDS), ENDS, strict=False))
WEIGHT = 5.0  # failures that speak for the common rate: the factors of few failures are close to 1

PUBLISHED = Hazard(
    failures=(28.0, 37.0, 20.0, 19.0, 25.0, 27.0, 33.0),
    seconds=(1_668_692.0, 7_721_778.0, 26_509_559.0, 66_645_876.0, 125_419_899.0, 200_285_024.0, 392_560_698.0),
    base=2.05e-3 / DAY,
    repeats=((102.0, 124.4), (45.0, 39.8), (42.0, 24.8)),
)


PROBATION = ENDS[-1]  # until then, nodes that returned fail more often than others


def expiry(hazard: Hazard, failure: float, value: float = 1.0, recent: int | None = None) -> float:
    """Return for how many seconds to keep a node away.

    Args:
        recent: How many failures the node had within `RECENT` before this one; None: not known.
        failure: Node-seconds that a failure costs the job: its nodes times the time of a recovery and the lost work.
        value: Of a node-second: 1 if the job lacks the node, less if others wait idle.
    """
    best, until, gain, begin, alive = 0.0, 0.0, 0.0, 0.0, 1.0
    for end, rate in zip(ENDS, hazard.rates(recent), strict=True):
        survives = exp(-rate * (end - begin))
        used = alive * ((1.0 - survives) / rate if rate else end - begin)
        gain += used * ((rate - hazard.base) * failure - value)
        if gain > best:
            best, until = gain, end
        begin, alive = end, alive * survives
    return until
