"""What the probe does: its thresholds, how much each tier has time for, and which nodes meet. Pure.

A node is at fault only if it fails with two different partners, so each meets two. After the first round, pairs depend
on the results (like DLRover's network check): a node that has succeeded with nobody meets one that has, not another
suspect, which would prove nothing. A round consists of disjoint pairs that meet at the same time, so neither the length
nor the number of rounds grows with the number of nodes.
"""

import enum
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from transom_cli.health.check import Tier


@dataclass(frozen=True)
class ProbeLimits:
    """Seconds, and shares of a median. Values without a source are ours.

    probe_hello: for importing torch while the node is busy. probe_compute, probe_link: deadlines of one request.
    probe_link_gpu: the same when NCCL builds its rings. probe_quick, probe_deep: the whole probe.

    probe_odd, probe_spread: a value is odd if it is slower than the median by this share and by this many robust
    standard deviations (Megatron's straggler report: more than 10% and one deviation; SuperBench also learns its limits
    from the cluster, and flags 5%). probe_again: slower than this share of the median, at any noise: measured
    twice more, beside healthy nodes. probe_slow: slower than this share of those, both times: SUSPECT (DLRover: a
    straggler takes more than twice the median). probe_rate: a link is slow below this share of the median node's
    bandwidth, if that is also probe_spread deviations below. probe_delay: a link is also slow at this many times the
    median delay, if it is longer by probe_delay_floor, a busy host's time slice. probe_starved: a process that waited
    for a CPU for this share of the time proves nothing about its link; a node on which that happened, and on the others
    less than half as long, is odd. With probe_no_processor in all measurements it is SUSPECT: a training there would
    get as little.

    probe_hot: a node is at fault if at least this share of its links is bad, all as a sender or all as a receiver (with
    two or three partners: every link). probe_most: if a check accuses more than this share of the nodes, their common
    setup or the probe is at fault.
    """

    probe_hello: float = 20.0
    probe_compute: float = 8.0
    probe_link: float = 5.0
    probe_link_gpu: float = 15.0
    probe_quick: float = 28.0
    probe_deep: float = 240.0
    probe_odd: float = 0.10
    probe_spread: float = 3.0
    probe_again: float = 0.67
    probe_slow: float = 0.5
    probe_rate: float = 0.4
    probe_delay: float = 10.0
    probe_delay_floor: float = 0.005
    probe_starved: float = 0.3
    probe_no_processor: float = 0.75
    probe_hot: float = 0.75
    probe_most: float = 0.5


@dataclass(frozen=True)
class Pace:
    """How much the probe does.

    all_bytes: message of the all-reduce. pair_bytes: longest transfer between two nodes. trips: round trips of a pair.
    link_seconds: sending time in each direction. together: largest group of one all-reduce; more nodes meet as rows and
    columns. rounds: of a tournament; 0 for two partners each. deadline: of one link request. budget: of the probe.
    """

    compute_seconds: float
    all_bytes: int
    pair_bytes: int
    trips: int
    link_seconds: float
    together: int
    rounds: int
    deadline: float
    budget: float


def pace_of(tier: Tier, limits: ProbeLimits, gpu: bool) -> Pace:
    """gpu: the devices are GPUs, whose links carry hundreds of times as much; NCCL needs no full mesh."""
    deep = tier is Tier.DEEP
    return Pace(
        compute_seconds=10.0 if deep else 0.8,
        all_bytes=(256 if gpu else 1) << 20,
        pair_bytes=(128 if gpu else 1) << 20,
        trips=100 if deep else 20,
        link_seconds=1.0 if deep else 0.15,
        together=16384 if gpu else 16,
        rounds=15 if deep else 0,
        deadline=limits.probe_link_gpu if gpu else limits.probe_link,
        budget=limits.probe_deep if deep else limits.probe_quick,
    )


Pair = tuple[str, str]
ENOUGH = 2  # partners of a node that succeeded with one; of one that did not, partners that succeeded with others
ROUNDS = 5  # at most: two, one more for an odd number, and two for suspects whose partners turn out to be suspects


class Outcome(enum.Enum):
    """How a meeting of two nodes went."""

    WELL = "well"
    SLOW = "slow"
    FAILED = "failed"


@dataclass(frozen=True)
class Meeting:
    pair: Pair
    outcome: Outcome


def together(nodes: Sequence[str], most: int) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return rounds of groups for an all-reduce: one group of all nodes, or, with more than `most`, rows and then
    columns. gloo connects every pair of a group's members, which takes too long for many nodes."""
    if len(nodes) <= most:
        return ((tuple(nodes),),) if nodes else ()
    across = _parts(nodes, most)
    columns = [tuple(row[i] for row in across if i < len(row)) for i in range(len(across[0]))]
    down = tuple(part for column in columns for part in _parts(column, most) if len(part) > 1)
    return across, down


def _parts(nodes: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """Split into as few parts as possible, of equal length or shorter by one, longest first."""
    count = -(-len(nodes) // most)
    short, longer = divmod(len(nodes), count)
    ends = [short * i + min(i, longer) for i in range(count + 1)]
    return tuple(tuple(nodes[start:end]) for start, end in pairwise(ends))


def next_round(nodes: Sequence[str], met: Sequence[Meeting]) -> tuple[Pair, ...]:
    """Return the pairs that meet next, given former meetings; () if nothing more can be learned.

    Pairs are disjoint and never repeat. One of each pair has succeeded with somebody or has met nobody yet. Two
    suspects meet only if no such partner is left (one of three nodes fails with both others).
    """
    known = _Known(nodes, met)
    if len(met) >= len(nodes) > 2 and all(one.outcome is Outcome.FAILED for one in met):
        return ()  # two rounds without any success: more would prove nothing
    free = dict.fromkeys(nodes)  # a set that keeps the order
    pairs = []
    for node in sorted(known.needy, key=known.urgency):
        if node not in free:
            continue
        del free[node]
        partner = known.partner(node, free)
        if partner is None:
            free[node] = None
            continue
        del free[partner]
        pairs.append((node, partner))
    return tuple(pairs)


class _Known:
    """What former meetings show about each node."""

    def __init__(self, nodes: Sequence[str], met: Sequence[Meeting]) -> None:
        self.nodes = tuple(nodes)
        self.place = {node: i for i, node in enumerate(nodes)}
        self.met: dict[str, dict[str, Outcome]] = {node: {} for node in nodes}
        for one in met:
            first, second = one.pair
            if first in self.met and second in self.met:
                self.met[first][second] = self.met[second][first] = one.outcome
        self.needy = {node for node in nodes if self._needs(node)}

    def suspect(self, node: str) -> bool:
        """Return whether it has met somebody and succeeded with nobody."""
        return bool(self.met[node]) and Outcome.WELL not in self.met[node].values()

    def urgency(self, node: str) -> tuple[bool, bool, int]:
        """Sort key: suspects first, since few partners help them; then nodes without a meeting; then by the ring."""
        turn = len(self.met[node])
        return (not self.suspect(node), turn > 0, (self.place[node] - turn) % len(self.place))

    def partner(self, node: str, free: Container[str]) -> str | None:
        """Return the next node on the ring that is free, new to it, and able to prove something; None without any."""
        suspect = self.suspect(node)
        apart = suspect and self._helpers(node)
        best, found = (2, 2), None
        for other in chain(self.nodes[self.place[node] + 1 :], self.nodes[: self.place[node]]):
            if other not in free or other in self.met[node] or (apart and self.suspect(other)):
                continue
            fit = (int(suspect and not self.met[other]), int(other not in self.needy))
            if fit < best:
                best, found = fit, other
            if fit == (0, 0):
                break
        return found

    def _helpers(self, node: str) -> bool:
        """Return whether a node that is not a suspect, free or not, has not met it yet."""
        return any(other != node and other not in self.met[node] and not self.suspect(other) for other in self.nodes)

    def _needs(self, node: str) -> bool:
        met = self.met[node]
        if len(met) == len(self.nodes) - 1:
            return False
        if not self.suspect(node):
            return len(met) < ENOUGH
        return len([other for other in met if not self.suspect(other)]) < ENOUGH


def tournament(nodes: Sequence[str], rounds: int) -> tuple[tuple[Pair, ...], ...]:
    """Pair every node with every other, in rounds of disjoint pairs (circle method); return the first `rounds`."""
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)  # its partner rests
    found = []
    for _ in range(min(len(ring) - 1, rounds)):
        half = len(ring) // 2
        twos = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append(tuple((a, b) for a, b in twos if a is not None and b is not None))
        ring.insert(1, ring.pop())
    return tuple(found)


def disjoint(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Distribute pairs over rounds, so that no node is in two pairs of a round."""
    rounds: list[dict[Pair, frozenset[str]]] = []
    for pair in pairs:
        free = next((r for r in rounds if not any(pair[0] in two or pair[1] in two for two in r.values())), None)
        if free is None:
            free = {}
            rounds.append(free)
        free[pair] = frozenset(pair)
    return tuple(tuple(one) for one in rounds)
