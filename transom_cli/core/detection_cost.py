"""Which limit of a detector costs least: a false alarm costs a restart, and a late one the time until it. Pure.

`transom advise` recommends by it. No run changes a limit by itself.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

HEADROOM = 1.5  # times the healthy score that a limit is to clear


@dataclass(frozen=True)
class Stakes:
    """What alarms cost, in seconds of training.

    Attributes:
        healthy, faulty: Cases per day: such as steps, and hangs.
    """

    healthy: float
    faulty: float
    false: float  # an alarm about a healthy case
    missed: float = 0.0  # a fault that raises no alarm
    delay: float = 0.0  # a fault, per unit of the limit that it has to exceed first


@dataclass(frozen=True)
class Point:
    """A limit on the ROC curve. false, found: shares of the healthy and of the faulty cases. cost: seconds per day."""

    limit: float
    false: float
    found: float
    cost: float


def curve(
    healthy: Sequence[float], stakes: Stakes, faulty: Sequence[float] = (), limits: Sequence[float] = ()
) -> tuple[Point, ...]:
    """Return what each limit costs, by limit.

    Args:
        healthy: Scores of healthy cases, such as the lengths of silences that ended by themselves.
        faulty: Scores of faults; empty: every fault exceeds every limit, as a hang does.
        limits: To compare; by default `HEADROOM` times each healthy score.
    """
    good, bad = sorted(healthy), sorted(faulty)
    points = []
    for limit in sorted(limits or {HEADROOM * score for score in good}):
        above = len(good) - bisect_right(good, limit)
        false = (above + 0.5) / (len(good) + 1)  # one that was never seen may still come
        found = 1.0 - bisect_right(bad, limit) / len(bad) if bad else 1.0
        late = found * limit * stakes.delay + (1.0 - found) * stakes.missed
        points.append(Point(limit, false, found, stakes.healthy * false * stakes.false + stakes.faulty * late))
    return tuple(points)


def cheapest(points: Sequence[Point]) -> Point:
    """Return the point that costs least; the higher limit, if two cost the same."""
    return min(points, key=lambda point: (point.cost, -point.limit))
