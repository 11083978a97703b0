"""Which node, or which link, does not carry what it should? Pure.

`link_all`: adding up over all together. `link_node`: a node that fails with two partners who are well with others.
`link_speed`: one that is slower than the rest with all its partners. `link`: two nodes that fail, or are slow, with
one another and are well with others. Of two nodes alone nobody can tell which is at fault: their link is named, and no
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.blame import Node, blame
from transom_cli.health.probe.judge_speed import amount
from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.matrix import Cell, Usual, learned, matrix
from transom_cli.health.probe.plan import ENOUGH, Went
from transom_cli.health.probe.reading import Norm, ProbeReading
from transom_cli.health.probe.shapes import Linked
from transom_cli.plural import several

ALL, NODE, SPEED, LINK = "link_all", "link_node", "link_speed", "link"
TWICE = 2  # meetings of two of which none was well, before one of them is kept out


def judge_links(
    reading: ProbeReading, limits: ProbeLimits, deep: bool, baseline: Iterable[Norm] = ()
) -> tuple[Finding, ...]:
    """One finding of each node that has met someone, for each of the four."""
    earlier = tuple(baseline)
    cells = matrix(reading.pairs, limits, earlier)
    usual = learned(cells, earlier)
    blamed = blame(reading.nodes, cells, limits.probe_hot)
    bad = {node.node: node for node in blamed.nodes}
    hot: dict[str, list[Cell]] = {node: [] for node in reading.nodes}
    for cell in blamed.links:
        hot[cell.src].append(cell)
        hot[cell.dst].append(cell)
    kept_out = _to_keep_out(blamed.links, hot) if deep else frozenset()
    of_node: dict[str, list[Cell]] = {node: [] for node in reading.nodes}
    for cell in cells:
        of_node[cell.src].append(cell)
        of_node[cell.dst].append(cell)
    found = []
    for node, mine in of_node.items():
        if not mine:
            continue
        found += _node(node, bad.get(node), mine, usual)
        found.append(_link(node, hot[node], node in kept_out, mine))
    culprits = {*bad, *(silent.node for silent in reading.silent)}
    return (*found, *(_all(one, culprits) for one in reading.alls if one.step))


def _node(node: str, bad: Node | None, mine: Sequence[Cell], usual: Usual) -> list[Finding]:
    partners = _names(_partners(node, mine))
    if bad is None:
        failed = f"it was well with {_names(_partners(node, [c for c in mine if not c.hot])) or 'nobody'} of {partners}"
        return [Finding(NODE, Verdict.PASS, node, failed), Finding(SPEED, Verdict.PASS, node, _best(node, mine, usual))]
    how = "both ways" if bad.sends and bad.receives else "as a sender" if bad.sends else "as a receiver"
    if bad.failed:
        words = next(cell.words for cell in bad.cells if cell.words)
        said = f"it failed with {_names(bad.partners)}, who are well with others ({how}): {words}"
        slow = Finding(SPEED, Verdict.UNKNOWN, node, "not judged: its links fail")
        return [Finding(NODE, Verdict.SUSPECT, node, said, Remedy.AVOID), slow]
    worst = min(bad.cells, key=lambda cell: float("inf") if cell.rate is None else cell.rate)
    said = f"slow with {_names(bad.partners)} ({how}): {_speed(worst)} from {worst.src} to {worst.dst}{_median(usual)}"
    well = Finding(NODE, Verdict.PASS, node, f"it reached {partners}")
    return [well, Finding(SPEED, Verdict.SUSPECT, node, said, Remedy.AVOID)]


def _link(node: str, hot: Sequence[Cell], keep_out: bool, mine: Sequence[Cell]) -> Finding:
    if not hot:
        return Finding(LINK, Verdict.PASS, node, f"no fault of a single link to {_names(_partners(node, mine))}")
    worst = next((cell for cell in hot if cell.went is Went.FAILED), hot[0])
    said = f"{worst.src} to {worst.dst}, {worst.went.value} in {worst.times} of {worst.times} meetings: "
    said += worst.words or _speed(worst)
    if len(_partners(node, mine)) < ENOUGH:
        said += "; with no third node to tell which of the two it is"
    elif keep_out:
        said += "; without this one of the two, the link is not used"
        return Finding(LINK, Verdict.SUSPECT, node, said, Remedy.AVOID)
    else:
        said += "; both are well with others"
    return Finding(LINK, Verdict.MONITOR, node, said, Remedy.WATCH)


def _to_keep_out(links: Sequence[Cell], hot: dict[str, list[Cell]]) -> frozenset[str]:
    """One node of each link that failed in every one of several meetings: that with the more bad links, or the later
    in the job's order. Without it nothing is sent over the link."""
    places = {node: place for place, node in enumerate(hot)}
    chosen: set[str] = set()
    for cell in links:
        if cell.times >= TWICE and not chosen & {cell.src, cell.dst}:
            chosen.add(max((cell.src, cell.dst), key=lambda node: (len(hot[node]), places[node])))
    return frozenset(chosen)


def _all(one: Linked, culprits: set[str]) -> Finding:
    device = f"device {one.index}"
    if one.well:
        said = f"{one.phase}: the sum over all is right, {one.seconds * 1e3:.3g} ms, bus bandwidth {amount(one.rate)}"
        return Finding(ALL, Verdict.PASS, one.node, said, device=device)
    said = f"{one.phase}, {one.step}: {one.error}"
    if culprits - {one.node}:
        said += f"; not judged, since {_names(sorted(culprits))} did not do"
        return Finding(ALL, Verdict.UNKNOWN, one.node, said, device=device)
    return Finding(ALL, Verdict.MONITOR, one.node, said, Remedy.WATCH, device)


def _partners(node: str, cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.dst if cell.src == node else cell.src for cell in cells))


def _best(node: str, mine: Sequence[Cell], usual: Usual) -> str:
    measured = [cell for cell in mine if cell.rate is not None]
    if not measured:
        return "nothing was measured"
    best = max(measured, key=lambda cell: cell.rate or 0.0)
    partner = best.dst if best.src == node else best.src
    hungry = f", waiting for a processor for {best.starved:.0%} of the time" if best.starved >= 0.1 else ""
    return f"{_speed(best)} with {partner}{hungry}{_median(usual)}"


def _speed(cell: Cell) -> str:
    rate = "?" if cell.rate is None else f"{amount(cell.rate).replace('/s', 'B/s')}"
    return f"{rate}, {(cell.delay or 0.0) * 1e3:.3g} ms"


def _median(usual: Usual) -> str:
    if usual.rate is None or usual.delay is None:
        return " (too few nodes to learn from)"
    of = f"median of {several(usual.rate.count, 'node')}" if usual.rate.count else "in earlier runs"
    rate = amount(usual.rate.median).replace("/s", "B/s")
    return f"; {of}: {rate}, {usual.delay.median * 1e3:.3g} ms"


def _names(nodes: Iterable[str], most: int = 4) -> str:
    these = list(nodes)
    return ", ".join(these[:most]) + (f" and {len(these) - most} more" if len(these) > most else "")
