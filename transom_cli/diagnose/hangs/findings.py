"""The results of comparing flight recorders, and each group as all its ranks saw it. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from transom_cli.diagnose.hangs.flight_recorder import Count, Flight, Group, View


class What(str, enum.Enum):
    """A mismatch, the most telling first."""

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
    """ranks: to blame, or () if undetermined. others: who calls it, or waits. seq: the call's number, 0 for none."""

    what: What
    group: str
    seq: int
    op: str
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    words: str


@dataclass
class Room:
    """One group with the views of its ranks. name: for display."""

    name: str
    members: tuple[int, ...]
    views: dict[int, View] = field(default_factory=dict)

    def op(self, rank: int, seq: int) -> str:
        """Return `all_reduce(4)`, or as much as is known of the call."""
        calls = self.views[rank].rounds.get(seq) if rank in self.views else None
        return str(calls[0]) if calls else "a collective"

    def place(self, rank: int, seq: int) -> str:
        """Return ` in step (train.py:12)`, or "" if it was not recorded."""
        calls = self.views[rank].rounds.get(seq) if rank in self.views else None
        return f" in {calls[0].place}" if calls and calls[0].place else ""


def rooms(by_rank: Mapping[int, Flight]) -> list[Room]:
    """Group the views by name and members: split groups of different ranks may share a name."""
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
        for rank in list(room.views):  # a dump without member names, of a group that other dumps name
            home = next((r for (n, m), r in found.items() if n == name and rank in m), None)
            if home is not None:
                home.views[rank] = room.views.pop(rank)
        room.members = tuple(sorted(by_rank if room.name == "default_pg" else room.views))
    return [room for room in found.values() if room.views]


def counted(room: Room, by_rank: Mapping[int, Flight]) -> Group:
    """Return how far each rank is. A rank whose entries were overwritten has no count."""
    counts = {rank: view.count for rank, view in room.views.items()}
    for rank in room.members:  # a rank that certainly called nothing in this group
        if rank not in counts and rank in by_rank and not by_rank[rank].overwritten:
            counts[rank] = Count(0, 0)
    return Group(room.name, room.members, counts)
