"""All ranks' flight recorders beside each other: who is missing, who calls something else, who comes late. Pure.

Waits are followed over groups to those who wait for nobody, see waits.py. Where somebody calls something else,
that comes first: what follows it is its consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from transom_cli.diagnose.hangs.findings import MISMATCHES, Finding, Room, What, counted, rooms
from transom_cli.diagnose.hangs.flight import Flight
from transom_cli.diagnose.hangs.mismatches import mismatch
from transom_cli.diagnose.hangs.waits import Group, Waiting, waiting
from transom_cli.diagnose.hangs.words import do, told

LATE = 1.0  # seconds: more than the clocks of one cluster are apart
STEADY = 0.8  # of its greatest delay; a rank that is always so late has another clock, or is slow: not to be told apart
A_NODE = 8  # ranks, numbered one after the other
LOOKED_AT = 50  # rounds of a group, the newest


@dataclass(frozen=True)
class Matched:
    """groups: how far each rank is in each. missing: ranks of which there is no dump."""

    findings: tuple[Finding, ...]
    groups: tuple[Group, ...]
    waits: Waiting
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def match(flights: Sequence[Flight]) -> Matched:
    """Findings, the most telling first. Dumps of some ranks may be missing: said in the notes."""
    by_rank = {flight.rank: flight for flight in flights}
    all_rooms = rooms(by_rank)
    groups = tuple(counted(room, by_rank) for room in all_rooms)
    unanswered = _unanswered(by_rank)
    waits = waiting(groups, unanswered)
    expected = {rank for flight in flights for ranks in flight.known.values() for rank in ranks}
    missing = tuple(sorted(expected - by_rank.keys()))
    found = [f for room in all_rooms if (f := mismatch(room, all_rooms))]
    if waits.roots:
        found += _absent(groups, all_rooms, waits) + _unmatched(unanswered, waits)
    elif waits.held and not found:
        found += _stuck(groups, all_rooms, waits, missing)
    elif waits.ring and not found:
        found += _round(all_rooms, waits)
    found += [f for room in all_rooms if (f := _late(room))]
    notes = [note for flight in flights for note in flight.notes]
    if missing:
        notes.append(f"no dump of {told(missing)}")
    order = list(What)
    found.sort(key=lambda f: (f.what not in MISMATCHES and order.index(f.what), not f.ranks, order.index(f.what)))
    return Matched(tuple(found), groups, waits, missing, tuple(notes))


def _absent(groups: Sequence[Group], all_rooms: Sequence[Room], waits: Waiting) -> list[Finding]:
    """Of each call that some wait in, who has not made it."""
    found = []
    for index, seq in sorted(set(waits.heads.values())):
        group, room = groups[index], all_rooms[index]
        absent = group.absent(seq)
        if not absent:
            continue
        waiters = tuple(sorted(rank for rank, head in waits.heads.items() if head == (index, seq)))
        op = room.op(waiters[0], seq)
        words = f"{do(absent, 'have', 'has')} not called {op}, #{seq} of {group.name}, where "
        words += f"{do(waiters, 'wait', 'waits')}{room.place(waiters[0], seq)}"
        ranks = tuple(sorted(absent & set(waits.roots)))
        words += "" if ranks else ": they wait elsewhere themselves"
        found.append(Finding(What.MISSING, group.name, seq, op, ranks, waiters, words))
    return found


def _unanswered(by_rank: Mapping[int, Flight]) -> dict[int, Collection[int]]:
    """By rank, who has not made the receive for its send, or the send for its receive.

    Only what is not over is looked at on both sides: what is over may have been overwritten.
    """
    open_ones = Counter((rank, p.other, p.sends) for rank, f in by_rank.items() for v in f.views for p in v.peers)
    waits: dict[int, Collection[int]] = {}
    for (rank, other, sends), count in open_ones.items():
        if other in by_rank and open_ones[other, rank, not sends] < count:
            waits[rank] = {*waits.get(rank, ()), other}
    return waits


def _unmatched(unanswered: Mapping[int, Collection[int]], waits: Waiting) -> list[Finding]:
    found = []
    for rank, others in unanswered.items():
        ranks = tuple(sorted(set(others) & set(waits.roots)))
        words = f"rank {rank} waits in a send or receive that {told(others)} did not answer"
        found.append(Finding(What.PEER, "", 0, "send or receive", ranks, (rank,), words))
    return found


def _round(all_rooms: Sequence[Room], waits: Waiting) -> list[Finding]:
    """Ranks that wait for each other: somebody left a call out, or uses groups in another order.

    Who, tells the number of calls that each has made since the last one of the group, where the others' are alike.
    """
    odd = [rank for rank in waits.ring if rank in waits.heads and drifted(all_rooms[waits.heads[rank][0]], rank, waits)]
    one = next(iter(odd or waits.ring))
    words = f"{do(waits.ring, 'wait', 'waits')} for each other"
    if one in waits.heads:
        index, seq = waits.heads[one]
        room = all_rooms[index]
        words += f": rank {one} in {room.op(one, seq)}, #{seq} of {room.name}, for {told(waits.edges[one])}"
    if odd:
        words += f"; {do(odd, 'have', 'has')} made more or fewer calls before it than the others have"
    others = tuple(rank for rank in waits.ring if rank not in odd)
    return [Finding(What.RING, "", 0, "", tuple(odd), others, words)]


def drifted(room: Room, rank: int, waits: Waiting) -> bool:
    """Whether a rank has made another number of calls, in all groups, between its head and the group's call before
    than most others of the group between the same two."""
    seq = waits.heads[rank][1]
    between = {
        other: view.rounds[seq][0].record - view.rounds[seq - 1][0].record
        for other, view in room.views.items()
        if seq in view.rounds and seq - 1 in view.rounds
    }
    if rank not in between or len(between) < 3:
        return False
    (usual, most), *_ = Counter(between.values()).most_common()
    return most > len(between) / 2 and between[rank] != usual


def _stuck(
    groups: Sequence[Group], all_rooms: Sequence[Room], waits: Waiting, missing: tuple[int, ...]
) -> list[Finding]:
    """Everybody of whom a dump is there has called it, nothing comes before it, and it does not end."""
    found = []
    for index, seq in sorted({waits.heads[rank] for rank in waits.held if rank in waits.heads}):
        group, room = groups[index], all_rooms[index]
        waiters = tuple(rank for rank in waits.held if waits.heads.get(rank) == (index, seq))
        op = room.op(waiters[0], seq)
        about = f"{op}, #{seq} of {group.name}"
        silent = tuple(rank for rank in missing if rank in group.members)
        still = tuple(rank for rank in waiters if group.counts[rank].started is False)
        begun = tuple(rank for rank in waiters if group.counts[rank].started)
        if silent:
            # dumps that are missing here and there were lost; those of one process or node are of who is gone
            alone = silent == missing and silent[-1] - silent[0] < A_NODE and 2 * len(silent) <= len(group.members)
            blamed = silent if alone else ()
            words = f"{do(waiters, 'wait', 'waits')} in {about}; there is no dump of {told(silent)}"
            found.append(Finding(What.NO_DUMP, group.name, seq, op, blamed, waiters, words))
        elif still and len(still) < len(begun):
            words = f"all have called {about}; on the GPU of {told(still)} it has not begun, on the others it has"
            found.append(Finding(What.LATE_START, group.name, seq, op, still, begun, words))
        else:
            over = len(group.counts) - len(waiters)
            words = f"all have called {about}, and it does not end" + (f" ({over} are through)" if over else "")
            found.append(Finding(What.STUCK, group.name, seq, op, (), waiters, words))
    return sorted(found, key=lambda f: -len(f.others))


def _late(room: Room) -> Finding | None:
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
    words = f"{do(late, 'were', 'was')} {found[-1]:.1f} s late to {room.op(worst, seq)}, #{seq} of {room.name}"
    always = len(found) > 2 and min(found) > STEADY * max(found)
    if always:
        words += ", and as late to all before: it is slow, or its node's clock is ahead"
    others = tuple(sorted(delays.keys() - set(late)))
    return Finding(What.LATE, room.name, seq, room.op(worst, seq), () if always else late, others, words)
