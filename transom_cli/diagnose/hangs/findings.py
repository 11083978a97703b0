"""What comes of comparing flight recorders, and the groups as they are compared: all ranks' views of each. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from transom_cli.diagnose.hangs.flight import Flight, View
from transom_cli.diagnose.hangs.waits import Count, Group


class What(str, enum.Enum):
    """What does not match, the most telling first."""

    TYPE = "another collective"
    SIZE = "another size"
    DTYPE = "another data type"
    ORDER = "another order"
    RING = "waits in a ring"
    MISSING = "not called"
    PEER = "no peer"
    NO_DUMP = "no dump"
    LATE_START = "not begun"
    STUCK = "called by all"
    LATE = "called late"


MISMATCHES = (What.TYPE, What.SIZE, What.DTYPE, What.ORDER)


@dataclass(frozen=True)
class Finding:
    """ranks: those to blame, () where that is not determinable. others: who calls it, or waits. seq: 0 for none."""

    what: What
    group: str
    seq: int
    op: str
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    words: str


@dataclass
class Room:
    """One group with the views of its ranks. name: for a person."""

    name: str
    members: tuple[int, ...]
    views: dict[int, View] = field(default_factory=dict)

    def op(self, rank: int, seq: int) -> str:
        """`all_reduce(4)`, or so much as is known of it."""
        calls = self.views[rank].rounds.get(seq) if rank in self.views else None
        return str(calls[0]) if calls else "a collective"

    def place(self, rank: int, seq: int) -> str:
        """` in step (train.py:12)`, "" where it is not recorded."""
        calls = self.views[rank].rounds.get(seq) if rank in self.views else None
        return f" in {calls[0].place}" if calls and calls[0].place else ""


def rooms(by_rank: Mapping[int, Flight]) -> list[Room]:
    """Groups by name and members: one name may stand for several, each of other ranks (split groups)."""
    found: dict[tuple[str, tuple[int, ...]], Room] = {}
    for rank, flight in by_rank.items():
        for view in flight.views:
            about = "" if view.about in ("", "undefined", view.name) else view.about
            words = about if about == "default_pg" or not about else f"{view.name} ({about})"
            key = view.name, view.members
            found.setdefault(key, Room(words or f"group {view.name}", view.members)).views[rank] = view
    for (name, members), room in found.items():
        if members:
            continue
        for rank in list(room.views):  # a dump that does not name them, of a group that others do
            home = next((r for (n, m), r in found.items() if n == name and rank in m), None)
            if home is not None:
                home.views[rank] = room.views.pop(rank)
        room.members = tuple(sorted(by_rank if room.name == "default_pg" else room.views))
    return [room for room in found.values() if room.views]


def counted(room: Room, by_rank: Mapping[int, Flight]) -> Group:
    """How far each rank is. One of which it is not known, since its entries were overwritten, has no count."""
    counts = {rank: view.count for rank, view in room.views.items()}
    for rank in room.members:  # a rank that has called nothing there, if it is certain that it has not
        if rank not in counts and rank in by_rank and not by_rank[rank].overwritten:
            counts[rank] = Count(0, 0)
    return Group(room.name, room.members, counts)
