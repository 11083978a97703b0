"""The order of an allocation's nodes, so that rings and pipelines run along near neighbours. Pure.

Rank r and r + 1 talk most: along a ring, or from one pipeline stage to the next. A ring is as fast as its slowest link,
so long links count more than in proportion: the tour with the smallest sum of cubed costs is sought, from the
nearest neighbours (greedy) and by reversing sections (2-opt). Ranks of one node stay together in any case, so groups of
tensor parallelism stay in a node.

The cost of a pair is what was measured, or else the median of measured pairs whose common switch is as high, or else
grows with that height. With neither measurements nor switches there is no reason to leave Slurm's order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

NEAR = 10  # neighbours of a node that 2-opt tries
PASSES = 6
STARTS = 8  # nodes from which a tour is begun
MANY = 128  # nodes from which not all pairs are looked at
SLOW = 1.5  # times the median at which a measured link differs from the others; less is noise
WORTH = 0.02  # share by which the order must be better than Slurm's: less is noise
_BY_HEIGHT = 2.0  # times the cost for each level of switches, if nothing was measured
Pair = tuple[str, str]


@dataclass(frozen=True)
class Network:
    """switches: of each node, from the top down, such as ("spine", "leaf1"). seconds: measured time of a pair."""

    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: Mapping[Pair, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return bool(self.seconds) or len(set(self.switches.values())) > 1


@dataclass(frozen=True)
class Placement:
    order: tuple[str, ...]  # the nodes that carry ranks
    spares: tuple[str, ...] = ()  # the others, nearest first
    words: str = ""  # "" if Slurm's order stays


class Costs:
    """The cost between two nodes, in either direction the worse one."""

    def __init__(self, network: Network) -> None:
        self._switches = network.switches
        self._pairs: dict[Pair, float] = {}
        for (a, b), seconds in network.seconds.items():
            key = (a, b) if a < b else (b, a)
            self._pairs[key] = max(seconds, self._pairs.get(key, 0.0))
        by_height: dict[int, list[float]] = {}
        for (a, b), seconds in self._pairs.items():
            by_height.setdefault(self.height(a, b), []).append(seconds)
        self._usual = {height: median(some) for height, some in by_height.items()}
        for key, seconds in self._pairs.items():
            usual = self._usual[self.height(*key)]
            self._pairs[key] = seconds if seconds > SLOW * usual else usual

    def height(self, a: str, b: str) -> int:
        """How many levels of switches two nodes do not share."""
        first, second = self._switches.get(a, ()), self._switches.get(b, ())
        shared = next(
            (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
        )
        return max(len(first), len(second)) - shared

    def __call__(self, a: str, b: str) -> float:
        key = (a, b) if a < b else (b, a)
        found = self._pairs.get(key)
        if found is None:
            height = self.height(a, b)
            found = self._usual.get(height)
            if found is None:
                nearest = min(self._usual, key=lambda h: abs(h - height), default=0)
                found = self._usual.get(nearest, 1.0) * _BY_HEIGHT ** float(height - nearest)
            self._pairs[key] = found
        return found

    def cubed(self, a: str, b: str) -> float:
        cost = self(a, b)
        return cost * cost * cost


def place(nodes: Sequence[str], wanted: int, network: Network) -> Placement:
    """Order `wanted` of the nodes, and choose the others as spares: those whose absence shortens the ring most."""
    given = Placement(tuple(nodes[:wanted]), tuple(nodes[wanted:]))
    if not network.known or len(nodes) < 3:
        return given
    costs = Costs(network)
    tour = _best_tour(nodes, costs, network)
    spares: list[str] = []
    while len(tour) > wanted:
        spares.insert(0, tour.pop(_dearest(tour, costs)))
    if spares:
        tour = improve(tour, costs, _near(tour, costs, network))
    before, after = length(given.order, costs), length(tour, costs)
    if after >= before * (1 - WORTH):
        return given
    tour = _cut(tour, costs)
    mean = [sum(costs(a, b) for a, b in _links(one)) for one in (given.order, tour)]
    words = f"the links between neighbouring nodes take {1 - mean[1] / mean[0]:.0%} less time than in Slurm's order"
    return Placement(tuple(tour), tuple(spares), f"ranks are ordered by the network: {words}")


def again(nodes: Sequence[str], network: Network) -> Placement:
    """Order nodes after some were lost or added; not if nothing is known of one, which may be another job's."""
    met = {*network.switches, *(n for pair in network.seconds for n in pair)}
    return place(nodes, len(nodes), network) if met.issuperset(nodes) else Placement(tuple(nodes))


def replacement(order: Sequence[str], lost: str, spares: Sequence[str], network: Network) -> str:
    """Choose the spare nearest to the neighbours of a lost node. Only the lost node's ranks move."""
    if not network.known:
        return spares[0]
    costs, at = Costs(network), order.index(lost)
    sides = [n for n in (order[at - 1], order[(at + 1) % len(order)]) if n != lost]
    return min(spares, key=lambda spare: sum(costs.cubed(spare, n) for n in sides))


def length(tour: Sequence[str], costs: Costs) -> float:
    return sum(costs.cubed(a, b) for a, b in _links(tour))


def greedy(nodes: Sequence[str], costs: Costs) -> list[str]:
    """From the first node on, always continue with the nearest one left."""
    left = dict.fromkeys(nodes)
    tour = [nodes[0]]
    del left[nodes[0]]
    while left:
        here = tour[-1]
        nearest = min(left, key=lambda n: costs(here, n))
        tour.append(nearest)
        del left[nearest]
    return tour


def _best_tour(nodes: Sequence[str], costs: Costs, network: Network) -> list[str]:
    if len(nodes) > MANY:  # nodes of a switch together
        tour = sorted(nodes, key=lambda n: network.switches.get(n, ()))
        return improve(tour, costs, _near(tour, costs, network))
    near = _near(nodes, costs, network)
    starts = range(0, len(nodes), max(1, len(nodes) // STARTS))
    tours = (improve(greedy((*nodes[i:], *nodes[:i]), costs), costs, near) for i in starts)
    return min(tours, key=lambda tour: length(tour, costs))


def _near(nodes: Sequence[str], costs: Costs, network: Network) -> dict[str, list[str]]:
    """The nearest nodes of each; of many, only from its own switch and from those that it was measured with."""
    if len(nodes) <= MANY:
        return {a: sorted((b for b in nodes if b != a), key=lambda b: costs(a, b))[:NEAR] for a in nodes}
    present = set(nodes)
    beside: dict[tuple[str, ...], list[str]] = {}
    met: dict[str, set[str]] = {}
    for node in nodes:
        beside.setdefault(network.switches.get(node, (node,)), []).append(node)
    for a, b in network.seconds:
        if a in present and b in present:
            met.setdefault(a, set()).add(b)
            met.setdefault(b, set()).add(a)
    return {
        a: sorted(({*beside[network.switches.get(a, (a,))], *met.get(a, ())} - {a}), key=lambda b: (costs(a, b), b))[
            :NEAR
        ]
        for a in nodes
    }


def improve(tour: Sequence[str], costs: Costs, near: Mapping[str, Sequence[str]]) -> list[str]:
    """Reverse sections as long as that shortens the ring (2-opt), between near neighbours only."""
    tour = list(tour)
    count = len(tour)
    if count < 4:
        return tour
    at = {node: i for i, node in enumerate(tour)}

    power = costs.cubed
    for _ in range(PASSES):
        changed = False
        for i in range(count):
            a, b = tour[i], tour[(i + 1) % count]
            here = power(a, b)
            for c in near[a]:
                if power(a, c) >= here:
                    break
                if c not in at:  # a spare
                    continue
                j = at[c]
                d = tour[(j + 1) % count]
                if d == a or c == b:
                    continue
                if power(a, c) + power(b, d) < here + power(c, d) - 1e-15:
                    low, high = sorted((i, j))
                    tour[low + 1 : high + 1] = reversed(tour[low + 1 : high + 1])
                    for k in range(low + 1, high + 1):
                        at[tour[k]] = k
                    changed = True
                    break
        if not changed:
            break
    return tour


def _links(tour: Sequence[str]) -> Iterable[Pair]:
    return zip(tour, (*tour[1:], tour[0]), strict=True)


def _dearest(tour: Sequence[str], costs: Costs) -> int:
    """The position of the node whose removal shortens the ring most."""

    def saved(i: int) -> float:
        a, x, b = tour[i - 1], tour[i], tour[(i + 1) % len(tour)]
        return costs.cubed(a, x) + costs.cubed(x, b) - (costs.cubed(a, b) if a != b else 0.0)

    return max(range(len(tour)), key=saved)


def _cut(tour: list[str], costs: Costs) -> list[str]:
    """Begin behind the longest link: a pipeline has none from its last stage to its first."""
    worst = max(range(len(tour)), key=lambda i: costs(tour[i - 1], tour[i]))
    return [*tour[worst:], *tour[:worst]]
