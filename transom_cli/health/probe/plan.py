"""Who is to meet whom: all together, then in twos, and again with another partner. Pure.

A node is at fault only when it fails with two different partners, so each meets two. After the first round the rest is
arranged by what was seen (as DLRover's network check pairs them): a node that has not been well with anyone meets one
that has, and never another of its like, which would tell nothing. Rounds are made of disjoint pairs that all meet at
the same time: what a round takes does not grow with the number of nodes, nor does the number of rounds.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

Pair = tuple[str, str]
ENOUGH = 2  # partners for a node that was well with one; for one that was not, partners that were well with others
ROUNDS = 5  # at most: two, one more for an odd number, and for suspects whose partners turned out to be suspects too


class Went(enum.Enum):
    """How two got on."""

    WELL = "well"
    SLOW = "slow"
    FAILED = "failed"


@dataclass(frozen=True)
class Met:
    pair: Pair
    went: Went


def together(nodes: Sequence[str], most: int) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Rounds of groups in which all are added up: one group of all, or with more than `most` nodes its rows, then its
    columns. gloo connects each member of a group with each, which many nodes would be long at."""
    if len(nodes) <= most:
        return ((tuple(nodes),),) if nodes else ()
    across = _parts(nodes, most)
    columns = [tuple(row[i] for row in across if i < len(row)) for i in range(len(across[0]))]
    down = tuple(part for column in columns for part in _parts(column, most) if len(part) > 1)
    return across, down


def _parts(nodes: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """As few as can be, as long as one another or shorter by one, the longest first."""
    count = -(-len(nodes) // most)
    short, longer = divmod(len(nodes), count)
    ends = [short * i + min(i, longer) for i in range(count + 1)]
    return tuple(tuple(nodes[start:end]) for start, end in pairwise(ends))


def next_round(nodes: Sequence[str], met: Sequence[Met]) -> tuple[Pair, ...]:
    """The pairs to meet next, given how the former ones went; () when nothing more can be learned.

    No node is in two of them, and none meets a partner again. Of two that meet, one was well with someone or has met
    nobody yet; only where nobody of that kind is left (one of three fails with both others) do two suspects meet.
    """
    known = _Known(nodes, met)
    if len(met) >= len(nodes) > 2 and all(one.went is Went.FAILED for one in met):
        return ()  # two rounds, and nobody was well with anyone: more of them tell nothing
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
    """What the meetings so far tell of each node."""

    def __init__(self, nodes: Sequence[str], met: Sequence[Met]) -> None:
        self.nodes = tuple(nodes)
        self.place = {node: i for i, node in enumerate(nodes)}
        self.met: dict[str, dict[str, Went]] = {node: {} for node in nodes}
        for one in met:
            first, second = one.pair
            if first in self.met and second in self.met:
                self.met[first][second] = self.met[second][first] = one.went
        self.needy = {node for node in nodes if self._needs(node)}

    def suspect(self, node: str) -> bool:
        """It has met someone, and was well with none."""
        return bool(self.met[node]) and Went.WELL not in self.met[node].values()

    def urgency(self, node: str) -> tuple[bool, bool, int]:
        """Suspects choose first, since few can help them; then who has met nobody; then by a turn of the ring."""
        turn = len(self.met[node])
        return (not self.suspect(node), turn > 0, (self.place[node] - turn) % len(self.place))

    def partner(self, node: str, free: Container[str]) -> str | None:
        """Of those who are free, have not met it, and can tell something of it: the next on the ring who needs one."""
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
        """Whether someone is left, free or not, who may have been well and has not met it."""
        return any(other != node and other not in self.met[node] and not self.suspect(other) for other in self.nodes)

    def _needs(self, node: str) -> bool:
        went = self.met[node]
        if len(went) == len(self.nodes) - 1:
            return False
        if not self.suspect(node):
            return len(went) < ENOUGH
        telling = [other for other in went if not self.suspect(other)]
        return len(telling) < ENOUGH


def tournament(nodes: Sequence[str], rounds: int) -> tuple[tuple[Pair, ...], ...]:
    """Each with each, in rounds of disjoint pairs (the circle method); of many nodes, only the first `rounds` of it."""
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)  # whoever meets nobody rests
    found = []
    for _ in range(min(len(ring) - 1, rounds)):
        half = len(ring) // 2
        twos = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append(tuple((a, b) for a, b in twos if a is not None and b is not None))
        ring.insert(1, ring.pop())
    return tuple(found)


def disjoint(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """The same pairs, in rounds in which no node is in two."""
    rounds: list[dict[Pair, frozenset[str]]] = []
    for pair in pairs:
        free = next((r for r in rounds if not any(pair[0] in two or pair[1] in two for two in r.values())), None)
        if free is None:
            free = {}
            rounds.append(free)
        free[pair] = frozenset(pair)
    return tuple(tuple(one) for one in rounds)
