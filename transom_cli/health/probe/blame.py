"""Which rows, columns and single cells of the matrix are at fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transom_cli.health.probe.matrix import Cell
from transom_cli.health.probe.plan import ENOUGH, Went


@dataclass(frozen=True)
class Node:
    """Bad as a sender, as a receiver, or both; cells: the hot ones that show it, partners: with whom."""

    node: str
    sends: bool
    receives: bool
    cells: tuple[Cell, ...]
    partners: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """With two partners. One that failed once and was slow else is slow: that may be chance, and is looked at
        again."""
        failing = {frozenset((cell.src, cell.dst)) for cell in self.cells if cell.went is Went.FAILED}
        return len(failing) >= ENOUGH


@dataclass(frozen=True)
class Blame:
    """links: hot cells that no bad node explains."""

    nodes: tuple[Node, ...]
    links: tuple[Cell, ...]


def blame(nodes: Sequence[str], cells: Sequence[Cell], share: float) -> Blame:
    """A node is bad with two partners at least who are well with someone else, and `share` of its row or column.

    The one with the most hot cells comes first, and what it explains blames nobody else.
    """
    found: list[Node] = []
    left = list(cells)
    while (worst := max(_bad(nodes, left, share), key=lambda node: len(node.cells), default=None)) is not None:
        found.append(worst)
        left = [cell for cell in left if cell not in worst.cells]
    return Blame(tuple(found), tuple(cell for cell in left if cell.hot))


def _bad(nodes: Sequence[str], cells: Sequence[Cell], share: float) -> Iterator[Node]:
    rows: dict[str, list[Cell]] = {node: [] for node in nodes}
    columns: dict[str, list[Cell]] = {node: [] for node in nodes}
    for cell in cells:
        if cell.src in rows and cell.dst in rows:
            rows[cell.src].append(cell)
            columns[cell.dst].append(cell)
    for node in nodes:
        sends = _hot(rows[node], "dst", rows, columns, share)
        receives = _hot(columns[node], "src", rows, columns, share)
        shown = tuple(dict.fromkeys((*sends, *receives)))
        if shown:
            partners = tuple(dict.fromkeys(cell.dst if cell.src == node else cell.src for cell in shown))
            yield Node(node, bool(sends), bool(receives), shown, partners)


def _hot(
    line: Sequence[Cell], end: str, rows: dict[str, list[Cell]], columns: dict[str, list[Cell]], share: float
) -> tuple[Cell, ...]:
    """The hot cells of a row (end: "dst") or column ("src") that is hot as a whole; () where it is not."""
    hot: dict[str, list[Cell]] = {}
    for cell in line:
        if cell.hot:
            hot.setdefault(getattr(cell, end), []).append(cell)
    met = {getattr(cell, end) for cell in line}
    witnesses = [other for other in hot if any(not cell.hot for cell in (*rows[other], *columns[other]))]
    if len(witnesses) < ENOUGH or len(hot) < share * len(met):
        return ()
    return tuple(cell for other in hot for cell in hot[other])
