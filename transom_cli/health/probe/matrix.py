"""How each node's messages reached each other node: the matrix that C4 reads. Pure.

A row is a sender, a column a receiver. One hot cell is a link; a row that is hot, whoever receives, is a node that
sends badly; a hot column is one that receives badly. A pair that failed is hot both ways, unless only what came from
one of them was garbled: nobody can tell in which direction a connection was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.plan import Met, Pair, Went
from transom_cli.health.probe.reading import Norm
from transom_cli.health.probe.shapes import DONE, Linked
from transom_cli.health.probe.speeds import FEWEST, below, middle

RATE, DELAY = "link rate", "link delay"
_WORSE = (Went.WELL, Went.SLOW, Went.FAILED)


@dataclass(frozen=True)
class Cell:
    """What went from src to dst, of the devices `index`, in all their meetings: the best of them. times: how many.

    rate: bytes a second; delay: seconds; None where nothing was measured. starved: the larger share of the time that
    one of the two processes waited for a processor. words: what failed.
    """

    src: str
    dst: str
    index: int
    went: Went
    rate: float | None = None
    delay: float | None = None
    starved: float = 0.0
    times: int = 1
    words: str = ""

    @property
    def hot(self) -> bool:
        return self.went is not Went.WELL


@dataclass(frozen=True)
class Usual:
    """rate, delay: of the median node with the partner it does best with; None: too few nodes to learn it from."""

    rate: Norm | None
    delay: Norm | None


def matrix(pairs: Iterable[Linked], limits: ProbeLimits, baseline: Iterable[Norm] = ()) -> tuple[Cell, ...]:
    """Of all pairs of which both have answered. What is slow is judged by what is usual among them."""
    cells = _merged(_cells(pairs))
    usual = learned(cells, baseline)
    return tuple(replace(cell, went=Went.SLOW) if _slow(cell, usual, limits) else cell for cell in cells)


def went(cells: Iterable[Cell]) -> tuple[Met, ...]:
    """Each pair that has met, and how: the worst of its directions and devices."""
    found: dict[Pair, Went] = {}
    for cell in cells:
        pair = (min(cell.src, cell.dst), max(cell.src, cell.dst))
        found[pair] = max(found.get(pair, Went.WELL), cell.went, key=_WORSE.index)
    return tuple(Met(pair, how) for pair, how in found.items())


def learned(cells: Sequence[Cell], baseline: Iterable[Norm] = ()) -> Usual:
    """With the best partner: one bad node in a few would else be in half of all the cells."""
    best_rate: dict[str, float] = {}
    best_delay: dict[str, float] = {}
    for cell in cells:
        if cell.went is Went.FAILED or cell.rate is None or cell.delay is None:
            continue
        for node in (cell.src, cell.dst):
            best_rate[node] = max(best_rate.get(node, 0.0), cell.rate)
            best_delay[node] = min(best_delay.get(node, cell.delay), cell.delay)
    earlier = {norm.name: norm for norm in baseline}
    return Usual(_norm(RATE, best_rate) or earlier.get(RATE), _norm(DELAY, best_delay) or earlier.get(DELAY))


def _norm(name: str, values: Mapping[str, float]) -> Norm | None:
    if len(values) < FEWEST:
        return None
    median, spread = middle(tuple(values.values()))
    return Norm("", name, median, spread, len(values))


def _slow(cell: Cell, usual: Usual, limits: ProbeLimits) -> bool:
    if cell.went is Went.FAILED or cell.rate is None or cell.delay is None or cell.starved >= limits.probe_starved:
        return False
    if usual.rate is not None and below(cell.rate, usual.rate, limits.probe_rate, limits):
        return True
    late = usual.delay is not None and cell.delay > limits.probe_delay * usual.delay.median
    return late and usual.delay is not None and cell.delay > usual.delay.median + limits.probe_delay_floor


def _cells(pairs: Iterable[Linked]) -> list[Cell]:
    """One for each direction of each meeting, `went` by whether it failed."""
    meetings: dict[tuple[int, int, frozenset[str]], dict[str, Linked]] = {}
    for one in pairs:
        if one.peer:
            meetings.setdefault((one.id, one.index, frozenset((one.node, one.peer))), {})[one.node] = one
    found = []
    for (_, index, _), sides in meetings.items():
        if len(sides) < 2:
            continue  # one gave no answer, which tells nothing of the other
        first, second = sides.values()
        words = _words(first, second)
        for here, there in ((first, second), (second, first)):
            bad = "what came was not what was sent" if there.garbled else words
            failed = Went.FAILED if bad else Went.WELL
            rate, delay = (here.sent.rate, here.sent.delay) if here.sent else (None, None)
            starved = max(here.sent.starved if here.sent else 0.0, there.starved)
            found.append(Cell(here.node, there.node, index, failed, rate, delay, starved, words=bad))
    return found


def _words(first: Linked, second: Linked) -> str:
    """Of a pair that failed, from whoever came further: the other only waited. Empty where both came to the end."""
    bad = [one for one in (first, second) if one.error or one.step != DONE]
    if not bad:
        return ""
    return "; ".join(f"{one.node}, {one.step}: {one.error or 'no end'}" for one in bad)


def _merged(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Several meetings of two as one: what once went well can go well."""
    found: dict[tuple[str, str, int], Cell] = {}
    for cell in cells:
        key = (cell.src, cell.dst, cell.index)
        former = found.get(key)
        if former is None:
            found[key] = cell
            continue
        better = min(former, cell, key=lambda c: _WORSE.index(c.went))
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
