"""Compare the flight recorders of all ranks: who is missing, who calls something else, who is late. Pure.

Waits are followed over groups to the ranks that wait for nobody, see `flight_recorder`. A rank that calls something
else comes first, since everything after it is a consequence.

Which calls must match follows torch's own analyser (torch/distributed/flight_recorder, `Op.match`), which needs torch
and unpickles by itself; a test compares the two. In addition, the majority decides which rank is wrong. If a group is
too small for that, its sister groups decide (groups of the same size with the same calls before: all tensor-parallel
groups run one program). A changed order is recognised.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from transom_cli.diagnose.hangs.findings import MISMATCHES, Finding, Room, What, counted, rooms
from transom_cli.diagnose.hangs.flight_recorder import Flight, Group, Op, Waiting, follow_waits
from transom_cli.diagnose.hangs.stacks import rank_names, ranks_do

_UNEVEN = ("all_to_all", "alltoall")
_COALESCED = "coalesced"
BEFORE = 3  # earlier calls that a sister group must have in common

Calls = Mapping[int, tuple[Op, ...]]  # by rank, with one number
Sign = tuple[tuple[object, ...], ...]  # what must match; for each call: name, shapes in and out, types


def mismatch(room: Room, rooms: Sequence[Room]) -> Finding | None:
    """Find the first number at which ranks call different things, unless it completed on all of them."""
    trusted = all(view.closed for view in room.views.values())
    front = min((view.count.completed for view in room.views.values()), default=0)
    for seq in sorted({seq for view in room.views.values() for seq in view.rounds}):
        if trusted and seq <= front:
            continue  # it matched well enough to complete
        calls = {rank: view.rounds[seq] for rank, view in room.views.items() if seq in view.rounds}
        signs = {rank: sign(ops) for rank, ops in calls.items()}
        if len(set(signs.values())) > 1:
            return _mismatched(room, seq, calls, signs, rooms)
        if len(calls) == len(room.members) and (words := _uneven(calls)):
            op = room.op(min(calls), seq)
            return Finding(What.SIZE, room.name, seq, op, (), tuple(sorted(calls)), f"{words} (#{seq} of {room.name})")
    return None


def sign(ops: Sequence[Op]) -> Sign:
    """Return what must be equal on all ranks of a group."""
    return tuple(map(_sign, ops))


def _sign(op: Op) -> tuple[object, ...]:
    name = op.name.lower()
    if name == _COALESCED:
        return (name,)
    uneven = name.startswith(_UNEVEN) or name.endswith("_v")
    sizes_in = None if uneven or name.startswith("scatter") else op.inputs
    sizes_out = None if uneven or name.startswith("gather") else op.outputs
    types_in = frozenset(op.input_types) if op.inputs and not name.startswith(("scatter", "broadcast")) else None
    types_out = frozenset(op.output_types) if op.outputs and not name.startswith("gather") else None
    return name, sizes_in, sizes_out, types_in, types_out


def _mismatched(room: Room, seq: int, calls: Calls, signs: Mapping[int, Sign], rooms: Sequence[Room]) -> Finding:
    (usual, most), *_ = Counter(signs.values()).most_common()
    known = most > len(signs) / 2
    if not known and (elsewhere := _of_sisters(room, seq, signs, rooms)) is not None:
        usual, known = elsewhere, True
    odd = tuple(sorted(rank for rank, sign in signs.items() if sign != usual))
    others = tuple(sorted(rank for rank, sign in signs.items() if sign == usual))
    what = _kind(room, seq, odd[0], others[0], signs)
    words = f"{_calls(room, odd, seq)} where {_calls(room, others, seq)} (#{seq} of {room.name})"
    if what is What.ORDER:
        words += ": in another order, or one call too few or too many"
    if not known:
        words += "; these dumps do not show which one is right"
    return Finding(what, room.name, seq, str(calls[others[0]][0]), odd if known else (), others, words)


def _of_sisters(room: Room, seq: int, signs: Mapping[int, Sign], rooms: Sequence[Room]) -> Sign | None:
    """Return what most sister groups call under the number, if some rank of this group does; None if unknown."""
    history = _history(room, min(signs), seq)
    said: Counter[Sign] = Counter()
    for other in rooms:
        if other is not room and len(other.members) == len(room.members) and history:
            said.update(
                sign(view.rounds[seq])
                for rank, view in other.views.items()
                if seq in view.rounds and _history(other, rank, seq) == history
            )
    if not said:
        return None
    (usual, most), *_ = said.most_common()
    return usual if most > said.total() / 2 and usual in signs.values() else None


def _history(room: Room, rank: int, seq: int) -> tuple[Sign, ...]:
    rounds = room.views[rank].rounds
    return tuple(sign(rounds[s]) for s in range(seq - BEFORE, seq) if s in rounds)


def _kind(room: Room, seq: int, odd: int, usual: int, signs: Mapping[int, Sign]) -> What:
    """Return ORDER if one side makes the other's call later, else what differs."""

    def later(rank: int) -> list[Sign]:
        rounds = room.views[rank].rounds
        return [sign(rounds[s]) for s in range(seq + 1, seq + 4) if s in rounds]

    a, b, of_odd, of_usual = signs[odd], signs[usual], later(odd), later(usual)
    alike_again = bool(of_odd and of_usual) and of_odd[0] == of_usual[0]
    if not alike_again and (a in of_usual or b in of_odd):
        return What.ORDER
    if [x[0] for x in a] != [x[0] for x in b]:
        return What.TYPE
    return What.SIZE if [x[1:3] for x in a] != [x[1:3] for x in b] else What.DTYPE


def _calls(room: Room, ranks: tuple[int, ...], seq: int) -> str:
    op = room.views[ranks[0]].rounds[seq][0]
    types = "/".join(sorted(set(op.input_types or op.output_types)))
    return f"{ranks_do(ranks, 'call', 'calls')} {op}{f' of {types}' if types else ''}{room.place(ranks[0], seq)}"


def _uneven(calls: Calls) -> str:
    """Describe an uneven all-to-all. It may differ between ranks, but the total sent must equal the total received."""
    ops = [op for found in calls.values() for op in found if op.name.lower().startswith(_UNEVEN)]
    sent = sum(math.prod(shape) for op in ops for shape in op.inputs)
    received = sum(math.prod(shape) for op in ops for shape in op.outputs)
    return f"{ops[0].name}: {sent} elements sent and {received} received over all ranks" if sent != received else ""


LATE = 1.0  # seconds; more than the clocks of one cluster differ
STEADY = 0.8  # of the greatest delay; a rank that is always this late is slow, or its clock is ahead
A_NODE = 8  # ranks with consecutive numbers
LOOKED_AT = 50  # newest rounds of a group


@dataclass(frozen=True)
class Matched:
    """groups: how far each rank is in each. missing: ranks without a dump."""

    findings: tuple[Finding, ...]
    groups: tuple[Group, ...]
    waits: Waiting
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def match(flights: Sequence[Flight]) -> Matched:
    """Return the findings, the most telling first. Missing dumps are named in the notes."""
    by_rank = {flight.rank: flight for flight in flights}
    all_rooms = rooms(by_rank)
    groups = tuple(counted(room, by_rank) for room in all_rooms)
    unanswered = _unanswered(by_rank)
    waits = follow_waits(groups, unanswered)
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
        notes.append(f"no dump of {rank_names(missing)}")
    order = list(What)
    found.sort(key=lambda f: (f.what not in MISMATCHES and order.index(f.what), not f.ranks, order.index(f.what)))
    return Matched(tuple(found), groups, waits, missing, tuple(notes))


def _absent(groups: Sequence[Group], all_rooms: Sequence[Room], waits: Waiting) -> list[Finding]:
    """For each call that some ranks wait in, find the ranks that have not made it."""
    found = []
    for index, seq in sorted(set(waits.heads.values())):
        group, room = groups[index], all_rooms[index]
        absent = group.absent(seq)
        if not absent:
            continue
        waiters = tuple(sorted(rank for rank, head in waits.heads.items() if head == (index, seq)))
        op = room.op(waiters[0], seq)
        words = f"{ranks_do(absent, 'have', 'has')} not called {op}, #{seq} of {group.name}, where "
        words += f"{ranks_do(waiters, 'wait', 'waits')}{room.place(waiters[0], seq)}"
        ranks = tuple(sorted(absent & set(waits.roots)))
        words += "" if ranks else ": they are waiting in another call themselves"
        found.append(Finding(What.MISSING, group.name, seq, op, ranks, waiters, words))
    return found


def _unanswered(by_rank: Mapping[int, Flight]) -> dict[int, Collection[int]]:
    """Return, by rank, who has not made the receive for its send, or the send for its receive.

    Both sides are compared by their incomplete calls only: completed ones may have been overwritten.
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
        words = f"rank {rank} waits in a send or receive that {rank_names(others)} did not answer"
        found.append(Finding(What.PEER, "", 0, "send or receive", ranks, (rank,), words))
    return found


def _round(all_rooms: Sequence[Room], waits: Waiting) -> list[Finding]:
    """Find ranks that wait for each other: one of them skipped a call, or uses the groups in another order.

    The number of calls since the group's last one shows which rank it is, if those of the others are equal.
    """
    odd = [rank for rank in waits.ring if rank in waits.heads and drifted(all_rooms[waits.heads[rank][0]], rank, waits)]
    one = next(iter(odd or waits.ring))
    words = f"{ranks_do(waits.ring, 'wait', 'waits')} for each other"
    if one in waits.heads:
        index, seq = waits.heads[one]
        room = all_rooms[index]
        words += f": rank {one} in {room.op(one, seq)}, #{seq} of {room.name}, for {rank_names(waits.edges[one])}"
    if odd:
        words += f"; {ranks_do(odd, 'have', 'has')} made more or fewer calls before it than the others have"
    others = tuple(rank for rank in waits.ring if rank not in odd)
    return [Finding(What.RING, "", 0, "", tuple(odd), others, words)]


def drifted(room: Room, rank: int, waits: Waiting) -> bool:
    """Whether a rank has made another number of calls, in all groups, between its head and the group's call before it
    than most other ranks of the group."""
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
    """Find calls that every rank with a dump has made, with nothing before them, and that do not complete."""
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
            # single missing dumps were lost; if all of a process or node are missing, it is gone
            alone = silent == missing and silent[-1] - silent[0] < A_NODE and 2 * len(silent) <= len(group.members)
            blamed = silent if alone else ()
            words = f"{ranks_do(waiters, 'wait', 'waits')} in {about}; there is no dump of {rank_names(silent)}"
            found.append(Finding(What.NO_DUMP, group.name, seq, op, blamed, waiters, words))
        elif still and len(still) < len(begun):
            words = f"all have called {about}; it has not started on the GPU of {rank_names(still)}, elsewhere it has"
            found.append(Finding(What.LATE_START, group.name, seq, op, still, begun, words))
        else:
            over = len(group.counts) - len(waiters)
            words = f"all have called {about}, and it does not complete" + (
                f" ({over} have completed it)" if over else ""
            )
            found.append(Finding(What.STUCK, group.name, seq, op, (), waiters, words))
    return sorted(found, key=lambda f: -len(f.others))


def _late(room: Room) -> Finding | None:
    """Find ranks that were late to the newest collective that all have called. Clocks limit this: see LATE."""
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
    words = f"{ranks_do(late, 'were', 'was')} {found[-1]:.1f} s late to {room.op(worst, seq)}, #{seq} of {room.name}"
    always = len(found) > 2 and min(found) > STEADY * max(found)
    if always:
        words += ", and as late to all before: it is slow, or its node's clock is wrong"
    others = tuple(sorted(delays.keys() - set(late)))
    return Finding(What.LATE, room.name, seq, room.op(worst, seq), () if always else late, others, words)
