"""The order in which ranks of several nodes ended, whose clocks differ. Pure.

A rank's wrapper records the end on its node's monotonic clock, which no time zone, summer time or NTP step changes. The
launcher measures how far that clock is from its own, and how exactly it knows that: half the time of a round trip.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from transom_cli.core.events import RankExit


@dataclass(frozen=True)
class NodeClock:
    """A node's monotonic clock. ahead: of the launcher's wall clock, in seconds. error: largest error of `ahead`."""

    node: str
    ahead: float
    error: float


def measured(node: str, asked: float, reported: float, answered: float) -> NodeClock:
    """Measure a clock by one call: what the node's clock showed between `asked` and `answered` on the launcher's."""
    return NodeClock(node, reported - (asked + answered) / 2, (answered - asked) / 2)


def on_launchers_clock(exits: Iterable[RankExit], clocks: Iterable[NodeClock]) -> tuple[RankExit, ...]:
    """Return the exits with times of the launcher's clock, where the node's clock was measured."""
    of = {clock.node: clock for clock in clocks}
    return tuple(_converted(x, of[x.node]) if x.node in of else x for x in exits)


def _converted(x: RankExit, clock: NodeClock) -> RankExit:
    if x.mono is None or x.error is not None:
        return x
    return replace(x, wall=x.mono - clock.ahead, error=clock.error)


def failed_first(exits: Iterable[RankExit]) -> tuple[RankExit, ...]:
    """Return the ranks that may have failed first, the likeliest first; a single one if the order is known.

    Ranks killed by the end of the step (TERM, KILL) come later in time. If no clock was measured, the nodes' clocks
    count as equal.
    """
    bad = sorted((x for x in exits if x.bad), key=lambda x: (x.wall, x.rank))
    if all(x.error is None for x in bad):
        return tuple(bad[:1])
    least = min(x.wall + _error(x) for x in bad)
    by_node: dict[str, RankExit] = {}
    for x in bad:
        by_node.setdefault(x.node, x)
    return tuple(x for x in by_node.values() if x.wall - _error(x) <= least)


def first_bad(exits: Iterable[RankExit]) -> RankExit | None:
    """Return the rank that probably failed first; None if none failed."""
    return next(iter(failed_first(exits)), None)


def _error(x: RankExit) -> float:
    return float("inf") if x.error is None else x.error
