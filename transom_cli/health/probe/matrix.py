"""The matrix of links between nodes: what each sent to each, who is at fault, and the verdicts. Pure.

A row is a sender, a column a receiver. A single bad cell is a link; a bad row is a node that sends badly; a bad column
one that receives badly. A failed pair is bad in both directions, unless only one side's bytes arrived garbled: nobody
can show in which direction a connection was lost.

Checks: `link_all`: the all-reduce over all nodes. `link_node`: a node that fails with two partners who succeed with
others. `link_speed`: a node that is slower than the rest with all its partners. `link`: two nodes that fail or are slow
with each other but succeed with others. With only two nodes, it is unknown which one is at fault: only their link is
named.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.messages import DONE, Linked, Norm, ProbeReading
from transom_cli.health.probe.plan import ENOUGH, Meeting, Outcome, Pair, ProbeLimits
from transom_cli.health.probe.speed import amount, below, learn
from transom_cli.plural import several, some

ALL, NODE, SPEED, LINK = "link_all", "link_node", "link_speed", "link"
TWICE = 2  # failed meetings of two nodes before one of them is excluded
_WORSE = (Outcome.WELL, Outcome.SLOW, Outcome.FAILED)


@dataclass(frozen=True)
class Cell:
    """What `src` sent to `dst` between devices number `index`: the best of `times` meetings.

    rate: bytes per second; delay: seconds; None if not measured. starved: the larger share of the time for which one of
    the two processes waited for a CPU. error: what failed.
    """

    src: str
    dst: str
    index: int
    outcome: Outcome
    rate: float | None = None
    delay: float | None = None
    starved: float = 0.0
    times: int = 1
    error: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome is not Outcome.WELL


@dataclass(frozen=True)
class Usual:
    """rate, delay: of the median node with its best partner; None: too few nodes to learn from."""

    rate: Norm | None
    delay: Norm | None


def matrix(pairs: Iterable[Linked], limits: ProbeLimits) -> tuple[Cell, ...]:
    """Return the cells of all pairs in which both have answered. Slow is judged by what is usual among them."""
    cells = _merged(_cells(pairs))
    usual = learned(cells)
    return tuple(replace(cell, outcome=Outcome.SLOW) if _slow(cell, usual, limits) else cell for cell in cells)


def meetings(cells: Iterable[Cell]) -> tuple[Meeting, ...]:
    """Return each pair that has met, with the worst outcome of its directions and devices."""
    found: dict[Pair, Outcome] = {}
    for cell in cells:
        pair = (min(cell.src, cell.dst), max(cell.src, cell.dst))
        found[pair] = max(found.get(pair, Outcome.WELL), cell.outcome, key=_WORSE.index)
    return tuple(Meeting(pair, outcome) for pair, outcome in found.items())


def learned(cells: Sequence[Cell]) -> Usual:
    """Learn from each node's best partner: otherwise one bad node among few would be in half of all cells."""
    best_rate: dict[str, float] = {}
    best_delay: dict[str, float] = {}
    for cell in cells:
        if cell.outcome is Outcome.FAILED or cell.rate is None or cell.delay is None:
            continue
        for node in (cell.src, cell.dst):
            best_rate[node] = max(best_rate.get(node, 0.0), cell.rate)
            best_delay[node] = min(best_delay.get(node, cell.delay), cell.delay)
    return Usual(learn(tuple(best_rate.values())), learn(tuple(best_delay.values())))


def _slow(cell: Cell, usual: Usual, limits: ProbeLimits) -> bool:
    if cell.outcome is Outcome.FAILED or cell.rate is None or cell.delay is None:
        return False
    if cell.starved >= limits.probe_starved:
        return False
    if usual.rate is not None and below(cell.rate, usual.rate, limits.probe_rate, limits):
        return True
    late = usual.delay is not None and cell.delay > limits.probe_delay * usual.delay.median
    return late and usual.delay is not None and cell.delay > usual.delay.median + limits.probe_delay_floor


def _cells(pairs: Iterable[Linked]) -> list[Cell]:
    """Return one cell per direction of each meeting, either WELL or FAILED."""
    found_pairs: dict[tuple[int, int, frozenset[str]], dict[str, Linked]] = {}
    for one in pairs:
        if one.peer:
            found_pairs.setdefault((one.id, one.index, frozenset((one.node, one.peer))), {})[one.node] = one
    found = []
    for (_, index, _), sides in found_pairs.items():
        if len(sides) < 2:
            continue  # a missing answer says nothing about the other side
        first, second = sides.values()
        error = _error(first, second)
        for here, there in ((first, second), (second, first)):
            bad = "the received bytes differ from those sent" if there.garbled else error
            outcome = Outcome.FAILED if bad else Outcome.WELL
            rate, delay = (here.sent.rate, here.sent.delay) if here.sent else (None, None)
            starved = max(here.sent.starved if here.sent else 0.0, there.starved)
            found.append(Cell(here.node, there.node, index, outcome, rate, delay, starved, error=bad))
    return found


def _error(first: Linked, second: Linked) -> str:
    bad = [one for one in (first, second) if one.error or one.step != DONE]
    return "; ".join(f"{one.node}, {one.step}: {one.error or 'did not finish'}" for one in bad)


def _merged(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Merge repeated meetings of two nodes: a link that worked once works."""
    found: dict[tuple[str, str, int], Cell] = {}
    for cell in cells:
        key = (cell.src, cell.dst, cell.index)
        former = found.get(key)
        if former is None:
            found[key] = cell
            continue
        better = min(former, cell, key=lambda c: _WORSE.index(c.outcome))
        rates = [c.rate for c in (former, cell) if c.rate is not None]
        delays = [c.delay for c in (former, cell) if c.delay is not None]
        found[key] = replace(
            better,
            rate=max(rates, default=None),
            delay=min(delays, default=None),
            starved=min(former.starved, cell.starved),
            times=former.times + 1,
        )
    return tuple(found.values())


@dataclass(frozen=True)
class BadNode:
    """A node that is bad as a sender, as a receiver, or both. cells: the bad ones that show it; partners: in them."""

    node: str
    sends: bool
    receives: bool
    cells: tuple[Cell, ...]
    partners: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether it failed with two partners. One failure beside slow links may be chance: it is measured again."""
        failing = {frozenset((cell.src, cell.dst)) for cell in self.cells if cell.outcome is Outcome.FAILED}
        return len(failing) >= ENOUGH


@dataclass(frozen=True)
class Blame:
    """links: bad cells that no bad node explains."""

    nodes: tuple[BadNode, ...]
    links: tuple[Cell, ...]


def blame(nodes: Sequence[str], cells: Sequence[Cell], share: float) -> Blame:
    """Find the nodes at fault.

    A node is at fault if it is bad with at least two partners who succeed with somebody else, and with `share` of its
    row or column. The node with the most bad cells comes first; cells that it explains accuse nobody else.
    """
    found: list[BadNode] = []
    remaining = list(cells)
    while (worst := max(_bad(nodes, remaining, share), key=lambda node: len(node.cells), default=None)) is not None:
        found.append(worst)
        remaining = [cell for cell in remaining if cell not in worst.cells]
    return Blame(tuple(found), tuple(cell for cell in remaining if cell.bad))


def _bad(nodes: Sequence[str], cells: Sequence[Cell], share: float) -> Iterator[BadNode]:
    rows: dict[str, list[Cell]] = {node: [] for node in nodes}
    columns: dict[str, list[Cell]] = {node: [] for node in nodes}
    for cell in cells:
        if cell.src in rows and cell.dst in rows:
            rows[cell.src].append(cell)
            columns[cell.dst].append(cell)
    for node in nodes:
        sends = _bad_cells(rows[node], "dst", rows, columns, share)
        receives = _bad_cells(columns[node], "src", rows, columns, share)
        shown = tuple(dict.fromkeys((*sends, *receives)))
        if shown:
            yield BadNode(node, bool(sends), bool(receives), shown, tuple(_partners(node, shown)))


def _bad_cells(
    line: Sequence[Cell], end: str, rows: dict[str, list[Cell]], columns: dict[str, list[Cell]], share: float
) -> tuple[Cell, ...]:
    """Return the bad cells of a row (end: "dst") or column ("src") that is bad as a whole; otherwise ()."""
    bad: dict[str, list[Cell]] = {}
    for cell in line:
        if cell.bad:
            bad.setdefault(getattr(cell, end), []).append(cell)
    met = {getattr(cell, end) for cell in line}
    witnesses = [other for other in bad if any(not cell.bad for cell in (*rows[other], *columns[other]))]
    if len(witnesses) < ENOUGH or len(bad) < share * len(met):
        return ()
    return tuple(cell for other in bad for cell in bad[other])


def judge_links(reading: ProbeReading, limits: ProbeLimits, deep: bool) -> tuple[Finding, ...]:
    """Return one finding per check for each node that has met another."""
    cells = matrix(reading.pairs, limits)
    usual = learned(cells)
    blamed = blame(reading.nodes, cells, limits.probe_hot)
    bad = {node.node: node for node in blamed.nodes}
    bad_links: dict[str, list[Cell]] = {node: [] for node in reading.nodes}
    for cell in blamed.links:
        bad_links[cell.src].append(cell)
        bad_links[cell.dst].append(cell)
    excluded = _to_exclude(blamed.links, bad_links) if deep else frozenset()
    of_node: dict[str, list[Cell]] = {node: [] for node in reading.nodes}
    for cell in cells:
        of_node[cell.src].append(cell)
        of_node[cell.dst].append(cell)
    found = []
    for node, own in of_node.items():
        if own:
            found += _judge_node(node, bad.get(node), own, usual)
            found.append(_judge_link(node, bad_links[node], node in excluded, own))
    culprits = {*bad, *(silent.node for silent in reading.silent)}
    return (*found, *(_judge_all(one, culprits) for one in reading.alls if one.step))


def _judge_node(node: str, bad: BadNode | None, own: Sequence[Cell], usual: Usual) -> list[Finding]:
    partners = some(_partners(node, own), 4)
    if bad is None:
        fine = some(_partners(node, [c for c in own if not c.bad]), 4) or "nobody"
        text = f"it communicated well with {fine} of {partners}"
        best = Finding(SPEED, Verdict.PASS, node, _best(node, own, usual))
        return [Finding(NODE, Verdict.PASS, node, text), best]
    how = "both ways" if bad.sends and bad.receives else "as a sender" if bad.sends else "as a receiver"
    if bad.failed:
        error = next(cell.error for cell in bad.cells if cell.error)
        text = f"it failed with {some(bad.partners, 4)}, which communicate well with others ({how}): {error}"
        slow = Finding(SPEED, Verdict.UNKNOWN, node, "not judged: its links fail")
        return [Finding(NODE, Verdict.SUSPECT, node, text, Remedy.AVOID), slow]
    worst = min(bad.cells, key=lambda cell: float("inf") if cell.rate is None else cell.rate)
    text = f"slow with {some(bad.partners, 4)} ({how}): {_speed(worst)} from {worst.src} to {worst.dst}{_median(usual)}"
    reached = Finding(NODE, Verdict.PASS, node, f"it reached {partners}")
    return [reached, Finding(SPEED, Verdict.SUSPECT, node, text, Remedy.AVOID)]


def _judge_link(node: str, bad: Sequence[Cell], exclude: bool, own: Sequence[Cell]) -> Finding:
    if not bad:
        return Finding(LINK, Verdict.PASS, node, f"no fault of a single link to {some(_partners(node, own), 4)}")
    worst = next((cell for cell in bad if cell.outcome is Outcome.FAILED), bad[0])
    text = f"{worst.src} to {worst.dst}, {worst.outcome.value} in {worst.times} of {worst.times} meetings: "
    text += worst.error or _speed(worst)
    if len(_partners(node, own)) < ENOUGH:
        text += "; no third node could show which of the two is at fault"
    elif exclude:
        text += "; without this node the link is not used"
        return Finding(LINK, Verdict.SUSPECT, node, text, Remedy.AVOID)
    else:
        text += "; both communicate well with others"
    return Finding(LINK, Verdict.MONITOR, node, text, Remedy.WATCH)


def _to_exclude(links: Sequence[Cell], bad: dict[str, list[Cell]]) -> frozenset[str]:
    """Choose one node of each link that failed in every one of several meetings: the one with more bad links, or the
    later one in the job's order. Without it the link is not used."""
    places = {node: place for place, node in enumerate(bad)}
    chosen: set[str] = set()
    for cell in links:
        if cell.times >= TWICE and not chosen & {cell.src, cell.dst}:
            chosen.add(max((cell.src, cell.dst), key=lambda node: (len(bad[node]), places[node])))
    return frozenset(chosen)


def _judge_all(one: Linked, culprits: set[str]) -> Finding:
    device = f"device {one.index}"
    if one.well:
        text = f"{one.phase}: the sum is right, {one.seconds * 1e3:.3g} ms, bus bandwidth {amount(one.rate)}"
        return Finding(ALL, Verdict.PASS, one.node, text, device=device)
    text = f"{one.phase}, {one.step}: {one.error}"
    if culprits - {one.node}:
        text += f"; not judged, because {some(sorted(culprits), 4)} failed"
        return Finding(ALL, Verdict.UNKNOWN, one.node, text, device=device)
    return Finding(ALL, Verdict.MONITOR, one.node, text, Remedy.WATCH, device)


def _partners(node: str, cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.dst if cell.src == node else cell.src for cell in cells))


def _best(node: str, own: Sequence[Cell], usual: Usual) -> str:
    measured = [cell for cell in own if cell.rate is not None]
    if not measured:
        return "nothing was measured"
    best = max(measured, key=lambda cell: cell.rate or 0.0)
    partner = best.dst if best.src == node else best.src
    starved = f", waiting for a CPU {best.starved:.0%} of the time" if best.starved >= 0.1 else ""
    return f"{_speed(best)} with {partner}{starved}{_median(usual)}"


def _speed(cell: Cell) -> str:
    rate = "?" if cell.rate is None else f"{amount(cell.rate).replace('/s', 'B/s')}"
    return f"{rate}, {(cell.delay or 0.0) * 1e3:.3g} ms"


def _median(usual: Usual) -> str:
    if usual.rate is None or usual.delay is None:
        return " (too few nodes to learn from)"
    of = f"median of {several(usual.rate.count, 'node')}"
    rate = amount(usual.rate.median).replace("/s", "B/s")
    return f"; {of}: {rate}, {usual.delay.median * 1e3:.3g} ms"
