"""Who waits for whom, from how far each rank is in each group; and who is at the end of the waiting. Pure.

A rank waits in its first collective that is not over. It waits for each member of that group which has not called that
collective yet. Such a member may itself wait in another group (pipeline stages wait for the stage of a rank that
stands in its data loader): to blame is who is waited for and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """How far one rank is in one group, in collectives since the group was made.

    enqueued: called so far. completed: over, with all before them. started: whether the first that is not over has
    begun on the device; None where that is not recorded. A rank of which nothing is known has no Count at all.
    """

    enqueued: int
    completed: int
    started: bool | None = None

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


@dataclass(frozen=True)
class Group:
    """name: for a person. members: global ranks. counts: by rank, of those that are known."""

    name: str
    members: tuple[int, ...]
    counts: Mapping[int, Count]

    def behind(self, rank: int) -> frozenset[int]:
        """Whom `rank` waits for here."""
        mine = self.counts.get(rank)
        if mine is None or not mine.waits:
            return frozenset()
        return frozenset(other for other, count in self.counts.items() if count.enqueued <= mine.completed)


@dataclass(frozen=True)
class Waiting:
    """edges: by rank, whom it waits for. roots: who is waited for and waits for nobody. ring: ranks that wait for each
    other, where that is all there is (groups used in another order)."""

    edges: Mapping[int, frozenset[int]]
    roots: tuple[int, ...]
    ring: tuple[int, ...]


def waiting(groups: Iterable[Group], more: Mapping[int, Collection[int]] | None = None) -> Waiting:
    """more: further waits, by rank (sends and receives)."""
    edges: dict[int, set[int]] = {rank: set(others) for rank, others in (more or {}).items() if others}
    for group in groups:
        # by front: ranks of one front wait for the same ones, and a group may have thousands
        fronts: dict[int, frozenset[int]] = {}
        for rank, count in group.counts.items():
            if count.waits:
                if count.completed not in fronts:
                    fronts[count.completed] = group.behind(rank)
                if fronts[count.completed]:
                    edges.setdefault(rank, set()).update(fronts[count.completed])
    waited_for = set().union(*edges.values()) if edges else set()
    roots = tuple(sorted(waited_for - edges.keys()))
    ring = tuple(sorted(waited_for & edges.keys())) if waited_for and not roots else ()
    return Waiting({rank: frozenset(others) for rank, others in sorted(edges.items())}, roots, ring)
