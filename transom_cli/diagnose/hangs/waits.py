"""Who waits for whom, from how far each rank is in each group; and where the waiting ends. Pure.

A rank waits in the first of its calls that is not over: its head. It waits for each member of that group which

- has not called that yet (calls on the processor come in an order), or
- has called it, but waits in an earlier call of its own (a GPU does them in that order, too).

Such a member may wait in turn: pipeline stages wait for the stage of a rank that stands in its data loader. To blame is
who is waited for and waits in nothing. Where there is no such rank, the waiting ends in calls that all members have as
their head, and the communication holds them; or it goes round.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """How far one rank is in one group, in collectives since the group was made.

    enqueued: called so far. completed: over, with all before them. started: whether the first that is not over has
    begun on the device; None where that is not recorded. order: a number that grows with the rank's calls in all
    groups, of the first that is not over. A rank of which nothing is known has no Count at all.
    """

    enqueued: int
    completed: int
    started: bool | None = None
    order: int = 0

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


@dataclass(frozen=True)
class Group:
    """name: for a person. members: global ranks. counts: by rank, of those that are known."""

    name: str
    members: tuple[int, ...]
    counts: Mapping[int, Count]

    def absent(self, seq: int) -> frozenset[int]:
        """Who has not made the call of that number."""
        return frozenset(rank for rank, count in self.counts.items() if count.enqueued < seq)


Head = tuple[int, int]  # the group's index, and the number of the call in it


@dataclass(frozen=True)
class Waiting:
    """heads: by rank, where it waits. edges: by rank, for whom. roots: who is waited for and waits in nothing.
    held: who waits for nobody, in a call that all have as their head. ring: ranks that wait for each other."""

    heads: Mapping[int, Head]
    edges: Mapping[int, frozenset[int]]
    roots: tuple[int, ...]
    held: tuple[int, ...]
    ring: tuple[int, ...]


def waiting(groups: Iterable[Group], more: Mapping[int, Collection[int]] | None = None) -> Waiting:
    """more: by rank, further ranks that it waits for (sends and receives)."""
    groups = tuple(groups)
    heads: dict[int, Head] = {}
    for index, group in enumerate(groups):
        for rank, count in group.counts.items():
            if count.waits and (rank not in heads or count.order < groups[heads[rank][0]].counts[rank].order):
                heads[rank] = index, count.completed + 1
    at_head = {head: _for_whom(groups, head, heads) for head in set(heads.values())}
    edges = {rank: at_head[head] for rank, head in heads.items()}
    for rank, others in (more or {}).items():
        edges[rank] = frozenset((*edges.get(rank, ()), *others))
    waited_for = frozenset().union(*edges.values())
    return Waiting(
        heads,
        dict(sorted(edges.items())),
        roots=tuple(sorted(waited_for - edges.keys())),
        held=tuple(sorted(rank for rank, others in edges.items() if not others)),
        ring=_ring(edges),
    )


def _for_whom(groups: tuple[Group, ...], head: Head, heads: Mapping[int, Head]) -> frozenset[int]:
    index, seq = head
    counts = groups[index].counts
    behind = {rank for rank, c in counts.items() if c.completed < seq <= c.enqueued and heads[rank] != head}
    return groups[index].absent(seq) | behind


def _ring(edges: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """The ranks of the cycles that nothing leads out of. Ranks with the same edges are taken together."""
    alike: dict[frozenset[int], list[int]] = {}
    for rank, others in edges.items():
        alike.setdefault(others, []).append(rank)
    node_of = {rank: others for others, ranks in alike.items() for rank in ranks}
    nexts: dict[Hashable, set[frozenset[int]]] = {o: {node_of[r] for r in o if r in node_of} for o in alike}
    reach: dict[frozenset[int], set[frozenset[int]]] = {}
    for start in alike:
        seen: set[frozenset[int]] = set()
        todo = list(nexts[start])
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += nexts[node]
        reach[start] = seen
    closed = [n for n, seen in reach.items() if seen and all(n in reach[other] for other in seen)]
    ends = {rank for rank in frozenset().union(*edges.values()) if rank not in edges}
    ring = {rank for node in closed if not node & ends for rank in alike[node]}
    return tuple(sorted(ring & frozenset().union(*(edges[rank] for rank in ring))))  # not who only waits for it
