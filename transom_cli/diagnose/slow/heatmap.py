"""Ranks x phases: what a step is spent on, in seconds, and who stands out. Pure.

Usual is the low median over the ranks (of an even number the smaller of the two in the middle), so that half of them
may be slow and are still seen to be: one node of two. A cell stands out when it is beyond that by five median absolute
deviations and by one percent of the step (EROICA, NSDI '26).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from transom_cli.beats.phases import KNOWN, OTHER, WAIT
from transom_cli.beats.spent import RankSpent

DEVIATIONS = 5.0
SHARE = 0.01  # of a step


@dataclass(frozen=True)
class Row:
    """One rank. step: seconds of a step, of which seconds were spent in each phase."""

    rank: int
    node: str
    step: float
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of(self, phase: str) -> float:
        return self.seconds.get(phase, 0.0)


@dataclass(frozen=True)
class HeatMap:
    """first, last: the steps that it is about. rows: by rank. phases: in the order of a step, those that occur."""

    first: int
    last: int
    rows: tuple[Row, ...]
    phases: tuple[str, ...]
    usual: Mapping[str, float]
    step: float
    marks: frozenset[tuple[int, str]]  # (rank, phase) of the cells that stand out

    @property
    def waits(self) -> bool:
        """Whether the ranks tell how long they wait for others."""
        return WAIT in self.phases

    @property
    def told(self) -> bool:
        """Whether they tell what they spend a step on at all."""
        return any(phase != OTHER for phase in self.phases)


def between(node: str, before: RankSpent, after: RankSpent) -> Row | None:
    """What the rank spent a step on between two readings of its account; None: no step, or not the same account."""
    steps = after.step - before.step
    if steps <= 0 or after.began != before.began or after.launch != before.launch or after.at <= before.at:
        return None
    spent = {name: after.seconds[name] - before.seconds.get(name, 0.0) for name in after.seconds}
    return Row(after.rank, node, (after.at - before.at) / steps, {n: max(0.0, s) / steps for n, s in spent.items()})


def fold(first: int, last: int, rows: Iterable[Row]) -> HeatMap | None:
    """None where there is no row."""
    ordered = tuple(sorted(rows, key=lambda row: row.rank))
    if not ordered:
        return None
    names = {name for row in ordered for name, seconds in row.seconds.items() if seconds > 0}
    own = sorted(names - set(KNOWN))
    phases = tuple(p for p in (*KNOWN[1:-1], *own, WAIT, OTHER) if p in names)
    step = median_low(row.step for row in ordered)
    usual, marks = {}, set()
    for phase in phases:
        column = [row.of(phase) for row in ordered]
        usual[phase] = middle = median_low(column)
        limit = middle + max(DEVIATIONS * median_low(abs(x - middle) for x in column), SHARE * step)
        marks |= {(row.rank, phase) for row in ordered if row.of(phase) > limit}
    return HeatMap(first, last, ordered, phases, usual, step, frozenset(marks))
