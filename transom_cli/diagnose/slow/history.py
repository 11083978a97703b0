"""Readings of all ranks' accounts, close together lately and further apart before, in constant memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from transom_cli.beats.spent import RankSpent
from transom_cli.diagnose.slow.heatmap import HeatMap, between, fold

KEPT = 24  # readings
CLOSE = 8  # of them that are never thinned out
Ranks = Mapping[int, tuple[str, RankSpent]]
"""By rank: its node, and its account."""


@dataclass(frozen=True)
class Snapshot:
    """step: the last that most ranks had done: of one that tells nothing any more it would stand still."""

    step: int
    ranks: Ranks

    @classmethod
    def of(cls, ranks: Ranks) -> Snapshot:
        return cls(median_low(spent.step for _, spent in ranks.values()), dict(ranks))


def remember(history: tuple[Snapshot, ...], snapshot: Snapshot) -> tuple[Snapshot, ...]:
    """The oldest one stays; of the others every second goes where there are too many."""
    grown = (*history, snapshot)
    return grown if len(grown) <= KEPT else (*grown[:-CLOSE:2], *grown[-CLOSE:])


def map_between(before: Snapshot, after: Snapshot) -> HeatMap | None:
    rows = (
        between(node, before.ranks[rank][1], spent)
        for rank, (node, spent) in after.ranks.items()
        if rank in before.ranks
    )
    return fold(before.step, after.step, (row for row in rows if row is not None))


def around(history: tuple[Snapshot, ...], newest: Snapshot, since: int) -> tuple[HeatMap | None, HeatMap | None]:
    """The maps from before the step and since it; None where there were no two readings."""
    earlier = [s for s in history if s.step <= since]
    later = [s for s in history if s.step >= since] or [s for s in history if s.step < newest.step][-1:]
    before = map_between(earlier[0], earlier[-1]) if len(earlier) > 1 else None
    return before, map_between(later[0], newest) if later else None
