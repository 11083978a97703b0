"""Heat maps of ranks and phases: what a step is spent on, in seconds, and which cells stand out. Pure.

The usual value is the low median over the ranks (the smaller of the two in the middle), so that one of two nodes can be
slow and still stand out. A cell stands out if it exceeds the usual value by five median absolute deviations and by one
percent of the step (EROICA, NSDI '26). A history keeps readings of all ranks' accounts in constant memory: recent ones
close together, older ones further apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from transom_cli.errors import printable
from transom_cli.heartbeat import OTHER, STEP_PHASES, WAIT
from transom_cli.heartbeat.step_breakdown import RankSteps
from transom_cli.plural import several

DEVIATIONS = 5.0
SHARE = 0.01  # of a step


@dataclass(frozen=True)
class Row:
    """One rank. step: seconds per step, divided into the seconds of each phase."""

    rank: int
    node: str
    step: float
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of(self, phase: str) -> float:
        return self.seconds.get(phase, 0.0)


@dataclass(frozen=True)
class HeatMap:
    """first, last: the steps covered. rows: by rank. phases: those that occur, in the order of a step."""

    first: int
    last: int
    rows: tuple[Row, ...]
    phases: tuple[str, ...]
    usual: Mapping[str, float]
    step: float
    marks: frozenset[tuple[int, str]]  # (rank, phase) of the cells that stand out

    @property
    def waits(self) -> bool:
        """Whether the ranks report how long they wait for others."""
        return WAIT in self.phases

    @property
    def reported(self) -> bool:
        """Whether the ranks report phases at all."""
        return any(phase != OTHER for phase in self.phases)


def between(node: str, before: RankSteps, after: RankSteps) -> Row | None:
    """Return what the rank spent its steps on between two readings; None without a step, or for another account."""
    steps = after.step - before.step
    if steps <= 0 or after.began != before.began or after.launch != before.launch or after.at <= before.at:
        return None
    spent = {name: after.seconds[name] - before.seconds.get(name, 0.0) for name in after.seconds}
    return Row(after.rank, node, (after.at - before.at) / steps, {n: max(0.0, s) / steps for n, s in spent.items()})


def fold(first: int, last: int, rows: Iterable[Row]) -> HeatMap | None:
    """Combine the rows of all ranks. None without rows."""
    ordered = tuple(sorted(rows, key=lambda row: row.rank))
    if not ordered:
        return None
    names = {name for row in ordered for name, seconds in row.seconds.items() if seconds > 0}
    own = sorted(names - set(STEP_PHASES))
    phases = tuple(p for p in (*STEP_PHASES[1:-1], *own, WAIT, OTHER) if p in names)
    step = median_low(row.step for row in ordered)
    usual, marks = {}, set()
    for phase in phases:
        column = [row.of(phase) for row in ordered]
        usual[phase] = middle = median_low(column)
        limit = middle + max(DEVIATIONS * median_low(abs(x - middle) for x in column), SHARE * step)
        marks |= {(row.rank, phase) for row in ordered if row.of(phase) > limit}
    return HeatMap(first, last, ordered, phases, usual, step, frozenset(marks))


MOST = 32  # ranks displayed
LEGEND = "▲ stands out   ▼ waits least for the others"


def lines(heat: HeatMap, most: int = MOST) -> list[str]:
    """Draw one row per rank and one column per phase, in ms per step; ranks that stand out come first."""
    shown = choose_rows(heat, most)
    least = _waits_least(heat)
    table = [["rank", "node", *(printable(p) + " " for p in heat.phases), "step "]]
    for row in shown:
        cells = [_ms(row.of(p)) + _mark(heat, row, p, least) for p in heat.phases]
        table.append([str(row.rank), printable(row.node), *cells, _ms(row.step) + " "])
    table.append(["usual", "", *(_ms(heat.usual[p]) + " " for p in heat.phases), _ms(heat.step) + " "])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    text = [f"steps {heat.first + 1} to {heat.last}, in ms per step"]
    for line in table:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        text.append("  ".join([*left, " ".join(right)]).rstrip())
    if len(shown) < len(heat.rows):
        text.append(f"and {several(len(heat.rows) - len(shown), 'rank')} more")
    return [*text, LEGEND] if heat.marks or least is not None else text


def choose_rows(heat: HeatMap, most: int) -> list[Row]:
    if len(heat.rows) <= most:
        return list(heat.rows)
    marks = {rank for rank, _ in heat.marks}
    first = sorted(heat.rows, key=lambda row: (row.rank not in marks, row.rank))[:most]
    return sorted(first, key=lambda row: row.rank)


def document(heat: HeatMap, most: int = 8 * MOST) -> dict[str, object]:
    """Return the map for JSON, in seconds per step: at most `most` ranks, and how many there are."""
    rows = [
        {
            "rank": row.rank,
            "node": row.node,
            "step": round(row.step, 6),
            "seconds": {p: round(row.of(p), 6) for p in heat.phases},
            "stands_out": [p for p in heat.phases if (row.rank, p) in heat.marks],
        }
        for row in choose_rows(heat, most)
    ]
    usual = {p: round(s, 6) for p, s in heat.usual.items()}
    steps = {"first_step": heat.first + 1, "last_step": heat.last, "step": round(heat.step, 6)}
    return {**steps, "phases": list(heat.phases), "usual": usual, "ranks": len(heat.rows), "rows": rows}


def _waits_least(heat: HeatMap) -> int | None:
    """Return the rank that all others wait for: its wait is at least a hundredth of a step shorter than usual."""
    if not heat.waits:
        return None
    least = min(heat.rows, key=lambda row: row.of(WAIT))
    return least.rank if heat.usual[WAIT] - least.of(WAIT) > 0.01 * heat.step else None


def _mark(heat: HeatMap, row: Row, phase: str, least: int | None) -> str:
    if phase == WAIT and row.rank == least:
        return "▼"
    return "▲" if (row.rank, phase) in heat.marks else " "


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


KEPT = 24  # readings
CLOSE = 8  # newest readings, which are never thinned out
Ranks = Mapping[int, tuple[str, RankSteps]]
"""By rank: its node and its account."""


@dataclass(frozen=True)
class Snapshot:
    """step: the last that most ranks have completed, so that a silent rank does not hold it back."""

    step: int
    ranks: Ranks

    @classmethod
    def of(cls, ranks: Ranks) -> Snapshot:
        return cls(median_low(spent.step for _, spent in ranks.values()), dict(ranks))


def remember(history: tuple[Snapshot, ...], snapshot: Snapshot) -> tuple[Snapshot, ...]:
    """Add a reading. If there are too many, every second one is dropped, except the oldest and the newest ones."""
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
    """Return the maps from before the step and since it; None without two readings."""
    earlier = [s for s in history if s.step <= since]
    later = [s for s in history if s.step >= since] or [s for s in history if s.step < newest.step][-1:]
    before = map_between(earlier[0], earlier[-1]) if len(earlier) > 1 else None
    return before, map_between(later[0], newest) if later else None
