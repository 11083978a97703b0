"""The nodes of a run as lines: a letter each, and a table of those that differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from transom_cli.plural import several
from transom_cli.ui.gpus import answering, worst
from transom_cli.ui.lines import LABEL, Line, Span, line, row, table
from transom_cli.ui.nodestate import LETTERS
from transom_cli.ui.view import NodeView, RunView
from transom_cli.ui.words import brief, count, some

GROUP = 8  # letters
NAMED = 8  # as many nodes are named beside their letters
TONES = {
    "ok": "good", "slow": "warn", "silent": "bad", "suspect": "bad", "probing": "note", "isolated": "bad",
    "waiting": "dim",
}  # fmt: skip
_HEAD = ("NODE", "STATE", "STEP", "BEAT", "RANKS", "GPU", "WORST", "NOTE")
_RIGHT = frozenset({"STEP", "BEAT", "RANKS", "GPU"})


def map_rows(view: RunView, width: int) -> list[Line]:
    """Of a run whose nodes tell nothing now, their names."""
    if not view.node_views or not view.nodes_known:
        return _named("nodes", view.nodes, view) + (_named("spares", view.spares, view) if view.spares else [])
    working = tuple(one for one in view.node_views if one.role != "spare")
    spares = tuple(one for one in view.node_views if one.role == "spare")
    return [*_map("nodes", working, width), *_map("spares", spares, width)]


def _named(label: str, nodes: tuple[str, ...], view: RunView) -> list[Line]:
    if not nodes or view.phase == "held" or (view.slurm_state == "PENDING" and not view.over):
        return []  # it has none now
    return [row(label, f"{len(nodes)}: {some(nodes)}")]


def _map(label: str, nodes: tuple[NodeView, ...], width: int) -> list[Line]:
    a_line = max(1, (width - LABEL + 1) // (GROUP + 1)) * GROUP
    lines: list[Line] = []
    for start in range(0, len(nodes), a_line):
        spans: list[Span] = []
        for i, one in enumerate(nodes[start : start + a_line]):
            gap, letter, tone = " " * bool(i and i % GROUP == 0), LETTERS[one.state], TONES[one.state]
            if spans and spans[-1][1] == tone:
                spans[-1] = (spans[-1][0] + gap + letter, tone)
            else:
                spans.append((gap + letter, tone))
        lines.append(row("" if lines else label, *spans))
    if 0 < len(nodes) <= NAMED:
        names = some(tuple(one.node for one in nodes), NAMED)
        lines[0] = (*lines[0], *line((f"{' ' * (NAMED + 1 - len(nodes))}{names}", "dim")))
    return lines


def node_table(view: RunView, *, everything: bool) -> list[Line]:
    """Those that differ, and how many do not; with `everything` all of them."""
    nodes = view.node_views if view.nodes_known else ()
    listed = [one for one in nodes if everything or one.differs]
    if not listed:
        return []
    lines = node_rows(listed)
    waiting = 0 if everything else sum(one.state == "waiting" and not one.differs for one in nodes)
    well = len(nodes) - len(listed) - waiting
    rest = [f"{several(well, 'node')} ok"] if well else []
    rest += [f"{several(waiting, 'node')} not heard of yet"] if waiting else []
    if rest:
        lines.append(line((f"{', '.join(rest)}, not listed (--all lists them)", "dim")))
    return lines


def node_rows(nodes: Sequence[NodeView]) -> list[Line]:
    """The heads of the columns, and a line for each of these nodes.

    GPU and WORST where there is something in them, and then RANKS only where some have ended: 80 columns hold no more.
    """
    shown = any(one.gpus is not None for one in nodes)
    left = set() if shown else {"GPU", "WORST"}
    left |= {"WORST"} if not any(worst(one)[0] for one in nodes) else set()
    left |= {"RANKS"} if shown and all(one.alive >= one.ranks for one in nodes) else set()
    kept = [i for i, name in enumerate(_HEAD) if name not in left]
    body = [_row(one) for one in nodes]
    return table(tuple(_HEAD[i] for i in kept), [tuple(cells[i] for i in kept) for cells in body], _RIGHT)


def _row(one: NodeView) -> tuple[str | Span, ...]:
    step = count(one.step) if one.step >= 0 else ""
    beat = brief(one.beat_age) if one.beat_age is not None else ""
    ranks: str | Span = f"{one.alive}/{one.ranks}" if one.ranks else ""
    if one.alive < one.ranks:
        ranks = (f"{one.alive}/{one.ranks}", "bad")
    doing = "" if one.phase in ("", "step") else f"in {one.phase}"
    role = {"spare": "spare", "out": "given up"}.get(one.role, "")
    note = "; ".join(x for x in (role, doing, one.note) if x)
    return one.node, (one.state, TONES[one.state]), step, beat, ranks, answering(one), worst(one), note
