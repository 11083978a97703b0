"""A heat map as lines of text, and as plain data. Pure."""

from __future__ import annotations

from transom_cli.beats.phases import WAIT
from transom_cli.diagnose.slow.heatmap import HeatMap, Row
from transom_cli.errors import printable
from transom_cli.plural import several

MOST = 32  # ranks that are shown
LEGEND = "▲ stands out   ▼ waits least for the others"


def lines(heat: HeatMap, most: int = MOST) -> list[str]:
    """A row a rank, a column a phase, milliseconds of a step; those that stand out first where there are too many."""
    shown = chosen(heat, most)
    least = _waits_least(heat)
    table = [["rank", "node", *(printable(p) + " " for p in heat.phases), "step "]]
    for row in shown:
        cells = [_ms(row.of(p)) + _mark(heat, row, p, least) for p in heat.phases]
        table.append([str(row.rank), printable(row.node), *cells, _ms(row.step) + " "])
    table.append(["usual", "", *(_ms(heat.usual[p]) + " " for p in heat.phases), _ms(heat.step) + " "])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    text = [f"steps {heat.first + 1} to {heat.last}, in ms a step"]
    for line in table:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        text.append("  ".join([*left, " ".join(right)]).rstrip())
    if len(shown) < len(heat.rows):
        text.append(f"and {several(len(heat.rows) - len(shown), 'rank')} more")
    return [*text, LEGEND] if heat.marks or least is not None else text


def chosen(heat: HeatMap, most: int) -> list[Row]:
    if len(heat.rows) <= most:
        return list(heat.rows)
    marks = {rank for rank, _ in heat.marks}
    first = sorted(heat.rows, key=lambda row: (row.rank not in marks, row.rank))[:most]
    return sorted(first, key=lambda row: row.rank)


def document(heat: HeatMap, most: int = 8 * MOST) -> dict[str, object]:
    """For JSON: seconds of a step. Of a large training the ranks that stand out, up to `most`; ranks: of how many."""
    rows = [
        {
            "rank": row.rank,
            "node": row.node,
            "step": round(row.step, 6),
            "seconds": {p: round(row.of(p), 6) for p in heat.phases},
            "stands_out": [p for p in heat.phases if (row.rank, p) in heat.marks],
        }
        for row in chosen(heat, most)
    ]
    usual = {p: round(s, 6) for p, s in heat.usual.items()}
    steps = {"first_step": heat.first + 1, "last_step": heat.last, "step": round(heat.step, 6)}
    return {**steps, "phases": list(heat.phases), "usual": usual, "ranks": len(heat.rows), "rows": rows}


def _waits_least(heat: HeatMap) -> int | None:
    """The rank that all others wait for, if they wait for one: a hundredth of a step shorter than usual, or more."""
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
