"""How long to keep a node away: its failure rate after a return, against what its absence costs. Pure.

A node that was at fault and returns fails again far more often than others, and the excess fades over weeks. `Hazard`
holds failures and exposure by the time since the return: a gamma-Poisson model, in which a site's own returns are added
to the published ones. While the expected cost of a failure exceeds the value of the node's work, it stays away.

`PUBLISHED` is computed from 400 GPU servers over 348 days (InfiniteHBD trace, StepFun, SIGCOMM 2025), without stress
tests. Its nodes had been repaired. Part of its first hours shows the repair workflow: a repair that did not help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp

HOUR, DAY = 3600.0, 86400.0
ENDS = (HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 14 * DAY, 30 * DAY)  # of the periods after a return


@dataclass(frozen=True)
class Return:
    """A node returned. used: seconds until it failed again, or until now. failed: it did."""

    used: float
    failed: bool


@dataclass(frozen=True)
class Hazard:
    """Failures and seconds of use in each period of `ENDS`, and the rate (per second) of nodes without an outage."""

    failures: tuple[float, ...]
    seconds: tuple[float, ...]
    base: float

    def updated(self, returns: Iterable[Return]) -> Hazard:
        """Add a site's own returns."""
        failures, seconds = list(self.failures), list(self.seconds)
        for one in returns:
            begin = 0.0
            for n, end in enumerate(ENDS):
                seconds[n] += max(0.0, min(end, one.used) - begin)
                failures[n] += one.failed and begin <= one.used < end
                begin = end
        return replace(self, failures=tuple(failures), seconds=tuple(seconds))

    def rates(self) -> tuple[float, ...]:
        return tuple(n / t if t else self.base for n, t in zip(self.failures, self.seconds, strict=True))


PUBLISHED = Hazard(
    failures=(28.0, 37.0, 20.0, 19.0, 25.0, 27.0, 33.0),
    seconds=(1_668_692.0, 7_721_778.0, 26_509_559.0, 66_645_876.0, 125_419_899.0, 200_285_024.0, 392_560_698.0),
    base=2.05e-3 / DAY,
)


PROBATION = ENDS[-1]  # until then, nodes that returned fail more often than others


def expiry(hazard: Hazard, failure: float, value: float = 1.0) -> float:
    """Return for how many seconds to keep a node away.

    Args:
        failure: Node-seconds that a failure costs the job: its nodes times the time of a recovery and the lost work.
        value: Of a node-second: 1 if the job lacks the node, less if others wait idle.
    """
    best, until, gain, begin, alive = 0.0, 0.0, 0.0, 0.0, 1.0
    for end, rate in zip(ENDS, hazard.rates(), strict=True):
        survives = exp(-rate * (end - begin))
        used = alive * ((1.0 - survives) / rate if rate else end - begin)
        gain += used * ((rate - hazard.base) * failure - value)
        if gain > best:
            best, until = gain, end
        begin, alive = end, alive * survives
    return until
