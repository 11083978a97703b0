"""All ranks' flight recorders beside each other: who is missing, who calls something else, who comes late. Pure.

The rules of what must be alike on all ranks are those of torch's own analyser (torch/distributed/flight_recorder,
`Op.match`), which needs torch and unpickles by itself; a test compares the two. Beyond it, the majority tells who is
wrong, an order that was changed is recognised, and waits are followed over groups to those who wait for nobody.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from transom_cli.diagnose.hangs.flight import Flight, Op, View
from transom_cli.diagnose.hangs.waits import Count, Group, Waiting, waiting
from transom_cli.diagnose.hangs.words import do, told

LATE = 1.0  # seconds: more than the clocks of one cluster are apart
STEADY = 0.8  # of its greatest delay; a rank that is always so late has another clock, or is slow: not to be told apart
LOOKED_AT = 50  # rounds of a group, the newest
_UNEVEN = ("all_to_all", "alltoall")
_COALESCED = "coalesced"


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
    LATE = "called late"
    STUCK = "called by all"


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


@dataclass(frozen=True)
class Matched:
    """groups: how far each rank is, where groups have waits. missing: ranks of which there is no dump."""

    findings: tuple[Finding, ...]
    groups: tuple[Group, ...]
    waits: Waiting
    missing: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass
class _Room:
    """One group with the views of its ranks."""

    name: str
    members: tuple[int, ...]
    views: dict[int, View] = field(default_factory=dict)


def match(flights: Sequence[Flight]) -> Matched:
    """Findings, the most telling first. Dumps of some ranks may be missing: said in the notes."""
    by_rank = {flight.rank: flight for flight in flights}
    rooms = _rooms(by_rank)
    groups = tuple(_counted(room, by_rank) for room in rooms)
    waits = waiting(groups, _peer_waits(by_rank))
    expected = {rank for flight in flights for ranks in flight.known.values() for rank in ranks}
    missing = tuple(sorted(expected - by_rank.keys()))
    found = [f for room in rooms if (f := _mismatch(room))]
    found += _missing(groups, rooms, waits) + _peers(waits, by_rank, groups) + _ring(waits)
    found += _stuck(groups, rooms, missing) if not found else []
    found += [f for room in rooms if (f := _late(room))]
    notes = [note for flight in flights for note in flight.notes]
    if missing:
        notes.append(f"no dump of {told(missing)}")
    order = list(What)
    return Matched(tuple(sorted(found, key=lambda f: order.index(f.what))), groups, waits, missing, tuple(notes))


def _rooms(by_rank: Mapping[int, Flight]) -> list[_Room]:
    """Groups by name and members: one name may stand for several, each of other ranks (split groups)."""
    rooms: dict[tuple[str, tuple[int, ...]], _Room] = {}
    for rank, flight in by_rank.items():
        for view in flight.views:
            words = view.about if view.about not in ("", "undefined") else view.name
            words = words if words == view.name or words == "default_pg" else f"{view.name} ({words})"
            key = view.name, view.members
            rooms.setdefault(key, _Room(words, view.members)).views[rank] = view
    for (name, members), room in list(rooms.items()):
        if members:
            continue
        for rank in list(room.views):  # a dump that does not name them, of a group that others do
            home = next((r for (n, m), r in rooms.items() if n == name and rank in m), None)
            if home is not None:
                home.views[rank] = room.views.pop(rank)
        room.members = tuple(sorted(by_rank if room.name == "default_pg" else room.views))
    return [room for room in rooms.values() if room.views]


def _counted(room: _Room, by_rank: Mapping[int, Flight]) -> Group:
    counts = {rank: view.count for rank, view in room.views.items()}
    for rank in room.members:  # a rank that has called nothing there, if it is certain that it has not
        if rank not in counts and rank in by_rank and not by_rank[rank].overwritten:
            counts[rank] = Count(0, 0)
    return Group(room.name, room.members, counts)


# ---- what is called must be alike -----------------------------------------------------------------------------------


def _mismatch(room: _Room) -> Finding | None:
    """The first number at which ranks call different things, if that is not over on all of them."""
    trusted = all(view.closed for view in room.views.values())
    front = min((view.count.completed for view in room.views.values()), default=0)
    seqs = sorted({seq for view in room.views.values() for seq in view.rounds})
    for seq in seqs:
        if trusted and seq <= front:
            continue  # it matched well enough to end
        calls = {rank: view.rounds[seq] for rank, view in room.views.items() if seq in view.rounds}
        signs = {rank: tuple(map(_sign, ops)) for rank, ops in calls.items()}
        if len(set(signs.values())) > 1:
            return _told_apart(room, seq, calls, signs)
        if len(calls) == len(room.members) and (words := _uneven(calls)):
            op = str(next(iter(calls.values()))[0])
            return Finding(What.SIZE, room.name, seq, op, (), tuple(sorted(calls)), f"{words} (#{seq} of {room.name})")
    return None


def _sign(op: Op) -> tuple[object, ...]:
    """What must be the same on all ranks of a group."""
    name = op.name.lower()
    if name == _COALESCED:
        return (name,)
    uneven = name.startswith(_UNEVEN)
    sizes_in = None if uneven or name.startswith("scatter") else op.inputs
    sizes_out = None if uneven or name.startswith("gather") else op.outputs
    types_in = frozenset(op.input_types) if op.inputs and not name.startswith(("scatter", "broadcast")) else None
    types_out = frozenset(op.output_types) if op.outputs and not name.startswith("gather") else None
    return name, sizes_in, sizes_out, types_in, types_out


def _told_apart(
    room: _Room, seq: int, calls: Mapping[int, tuple[Op, ...]], signs: Mapping[int, tuple[tuple[object, ...], ...]]
) -> Finding:
    (usual, most), *_ = Counter(signs.values()).most_common()
    odd = tuple(sorted(rank for rank, sign in signs.items() if sign != usual))
    others = tuple(sorted(rank for rank, sign in signs.items() if sign == usual))
    known = most > len(signs) / 2
    what = _kind(room, seq, odd[0], others[0], signs)
    said = [_calls(odd, calls), _calls(others, calls)]
    words = f"{said[0]} where {said[1]} (#{seq} of {room.name})"
    if what is What.ORDER:
        words += ": in another order, or one call too few or too many"
    if not known:
        words += "; which of them is right is not determinable"
    return Finding(what, room.name, seq, str(calls[others[0]][0]), odd if known else (), others, words)


def _kind(room: _Room, seq: int, odd: int, usual: int, signs: Mapping[int, tuple[tuple[object, ...], ...]]) -> What:
    """ORDER where the odd one's call comes later on the others, or theirs later on it; else what differs."""

    def later(rank: int) -> list[tuple[tuple[object, ...], ...]]:
        rounds = room.views[rank].rounds
        return [tuple(map(_sign, rounds[s])) for s in range(seq + 1, seq + 4) if s in rounds]

    a, b, of_odd, of_usual = signs[odd], signs[usual], later(odd), later(usual)
    alike_again = bool(of_odd and of_usual) and of_odd[0] == of_usual[0]
    if not alike_again and (a in of_usual or b in of_odd):
        return What.ORDER
    if [x[0] for x in a] != [x[0] for x in b]:
        return What.TYPE
    return What.SIZE if [x[1:3] for x in a] != [x[1:3] for x in b] else What.DTYPE


def _calls(ranks: tuple[int, ...], calls: Mapping[int, tuple[Op, ...]]) -> str:
    op = calls[ranks[0]][0]
    types = "/".join(sorted(set(op.input_types or op.output_types)))
    return f"{do(ranks, 'call', 'calls')} {op}{f' of {types}' if types else ''}{f' in {op.place}' if op.place else ''}"


def _uneven(calls: Mapping[int, tuple[Op, ...]]) -> str:
    """All-to-all may be uneven between ranks; what all send is what all receive."""
    ops = [op for found in calls.values() for op in found if op.name.lower().startswith(_UNEVEN)]
    sent = sum(math.prod(shape) for op in ops for shape in op.inputs)
    received = sum(math.prod(shape) for op in ops for shape in op.outputs)
    return f"{ops[0].name}: {sent} elements sent and {received} received over all ranks" if sent != received else ""


# ---- who has not called ---------------------------------------------------------------------------------------------


def _missing(groups: Iterable[Group], rooms: Sequence[_Room], waits: Waiting) -> list[Finding]:
    found = []
    for group, room in zip(groups, rooms, strict=True):
        fronts = {c.completed for c in group.counts.values() if c.waits}
        for front in sorted(fronts):
            waiters = tuple(sorted(r for r, c in group.counts.items() if c.waits and c.completed == front))
            behind = group.behind(waiters[0])
            if not behind:
                continue
            first = room.views[waiters[0]].rounds.get(front + 1)
            op = str(first[0]) if first else "a collective"
            place = f" in {first[0].place}" if first and first[0].place else ""
            roots = tuple(sorted(behind & set(waits.roots)))
            words = (
                f"{do(behind, 'have', 'has')} not called {op}, #{front + 1} of {group.name}, where "
                f"{do(waiters, 'wait', 'waits')}{place}"
            )
            if not roots:
                words += ": they wait elsewhere themselves"
            found.append(Finding(What.MISSING, group.name, front + 1, op, roots, waiters, words))
    return sorted(found, key=lambda f: not f.ranks)


def _peer_waits(by_rank: Mapping[int, Flight]) -> dict[int, set[int]]:
    """A send without its receive, a receive without its send: only what is not over is looked at, since entries get
    overwritten."""
    open_ones = Counter((rank, p.other, p.sends) for rank, f in by_rank.items() for v in f.views for p in v.peers)
    waits: dict[int, set[int]] = {}
    for (rank, other, sends), count in open_ones.items():
        if other in by_rank and open_ones[other, rank, not sends] < count:
            waits.setdefault(rank, set()).add(other)
    return waits


def _peers(waits: Waiting, by_rank: Mapping[int, Flight], groups: Sequence[Group]) -> list[Finding]:
    found = []
    roots = set(waits.roots)
    for rank, others in _peer_waits(by_rank).items():
        ranks = tuple(sorted(others & roots))
        words = f"rank {rank} waits in a send or receive that {told(others)} did not answer"
        found.append(Finding(What.PEER, "", 0, "send or receive", ranks, (rank,), words))
    return sorted(found, key=lambda f: not f.ranks)


def _ring(waits: Waiting) -> list[Finding]:
    if not waits.ring:
        return []
    one = next(iter(waits.ring))
    words = f"{do(waits.ring, 'wait', 'waits')} for each other: groups are used in another order (rank {one} waits for "
    words += f"{told(waits.edges[one])})"
    return [Finding(What.RING, "", 0, "", (), waits.ring, words)]


def _stuck(groups: Sequence[Group], rooms: Sequence[_Room], missing: tuple[int, ...]) -> list[Finding]:
    """Everybody of whom a dump is there has called it, and it does not end."""
    found = []
    for group, room in zip(groups, rooms, strict=True):
        waiters = tuple(sorted(rank for rank, count in group.counts.items() if count.waits))
        if not waiters:
            continue
        front = min(group.counts[rank].completed for rank in waiters)
        first = room.views[next(r for r in waiters if group.counts[r].completed == front)].rounds.get(front + 1)
        op = str(first[0]) if first else "a collective"
        about = f"{op}, #{front + 1} of {group.name}"
        silent = tuple(rank for rank in missing if rank in group.members)
        still = tuple(r for r in waiters if group.counts[r].completed == front and group.counts[r].started is False)
        begun = [rank for rank in waiters if group.counts[rank].started]
        if silent:
            blamed = silent if len(silent) <= len(group.members) / 2 else ()
            words = f"all others wait in {about}; there is no dump of {told(silent)}"
            found.append(Finding(What.NO_DUMP, group.name, front + 1, op, blamed, waiters, words))
        elif still and begun and len(still) < len(begun):
            words = f"all have called {about}; on the GPU of {told(still)} it has not begun, on the others it has"
            found.append(Finding(What.LATE_START, group.name, front + 1, op, still, tuple(begun), words))
        else:
            over = len(group.counts) - len(waiters)
            words = f"all have called {about}, and it does not end" + (f" ({over} are through)" if over else "")
            found.append(Finding(What.STUCK, group.name, front + 1, op, (), waiters, words))
    order = list(What)
    return sorted(found, key=lambda f: (order.index(f.what), -len(f.others)))


def _late(room: _Room) -> Finding | None:
    """Who came late to the newest collective that all have called. Of little worth where clocks are apart, see LATE."""
    shared = set.intersection(*(set(view.rounds) for view in room.views.values())) if len(room.views) > 2 else set()
    delays: dict[int, list[float]] = {}
    for seq in sorted(shared)[-LOOKED_AT:]:
        created = {rank: view.rounds[seq][0].created for rank, view in room.views.items()}
        times = {rank: at for rank, at in created.items() if at is not None}
        if len(times) == len(created):
            middle = median(times.values())
            for rank, at in times.items():
                delays.setdefault(rank, []).append(at - middle)
    late = tuple(sorted(rank for rank, found in delays.items() if found[-1] > LATE))
    if not late or len(late) > len(delays) / 2:
        return None
    worst = max(late, key=lambda rank: delays[rank][-1])
    seq, found = max(shared), delays[worst]
    clock = len(found) > 2 and min(found) > STEADY * max(found)
    op = str(room.views[worst].rounds[seq][0])
    words = f"{do(late, 'were', 'was')} {found[-1]:.1f} s late to {op}, #{seq} of {room.name}"
    if clock:
        words += ", and as late to all before: it is slow, or its node's clock is ahead"
    others = tuple(sorted(delays.keys() - set(late)))
    return Finding(What.LATE, room.name, seq, op, () if clock else late, others, words)
