"""Ranks of a group that call different things under one number: what differs, and who is wrong. Pure.

The rules of what must be alike are those of torch's own analyser (torch/distributed/flight_recorder, `Op.match`), which
needs torch and unpickles by itself; a test compares the two. Beyond it, the majority tells who is wrong; where a group
is too small for one, its sisters do (groups of the same size that have called the same before: all tensor-parallel
groups run one program); and an order that was changed is recognised.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from transom_cli.diagnose.hangs.findings import Finding, Room, What
from transom_cli.diagnose.hangs.flight import Op
from transom_cli.diagnose.hangs.words import do

_UNEVEN = ("all_to_all", "alltoall")
_COALESCED = "coalesced"
BEFORE = 3  # calls that must have been alike for a group to count as a sister

Calls = Mapping[int, tuple[Op, ...]]  # by rank, of one number
Sign = tuple[tuple[object, ...], ...]  # what must be alike of a round; of each call: name, shapes in and out, types


def mismatch(room: Room, rooms: Sequence[Room]) -> Finding | None:
    """The first number at which ranks call different things, if that is not over on all of them. rooms: all."""
    trusted = all(view.closed for view in room.views.values())
    front = min((view.count.completed for view in room.views.values()), default=0)
    for seq in sorted({seq for view in room.views.values() for seq in view.rounds}):
        if trusted and seq <= front:
            continue  # it matched well enough to end
        calls = {rank: view.rounds[seq] for rank, view in room.views.items() if seq in view.rounds}
        signs = {rank: sign(ops) for rank, ops in calls.items()}
        if len(set(signs.values())) > 1:
            return _told_apart(room, seq, calls, signs, rooms)
        if len(calls) == len(room.members) and (words := _uneven(calls)):
            op = room.op(min(calls), seq)
            return Finding(What.SIZE, room.name, seq, op, (), tuple(sorted(calls)), f"{words} (#{seq} of {room.name})")
    return None


def sign(ops: Sequence[Op]) -> Sign:
    """What must be the same on all ranks of a group."""
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


def _told_apart(room: Room, seq: int, calls: Calls, signs: Mapping[int, Sign], rooms: Sequence[Room]) -> Finding:
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
        words += "; which of them is right is not determinable"
    return Finding(what, room.name, seq, str(calls[others[0]][0]), odd if known else (), others, words)


def _of_sisters(room: Room, seq: int, signs: Mapping[int, Sign], rooms: Sequence[Room]) -> Sign | None:
    """What most of the groups like this one call under the number, if some rank of this one does. None: not known."""
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
    """ORDER where the odd one's call comes later on the others, or theirs later on it; else what differs."""

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
    return f"{do(ranks, 'call', 'calls')} {op}{f' of {types}' if types else ''}{room.place(ranks[0], seq)}"


def _uneven(calls: Calls) -> str:
    """All-to-all may be uneven between ranks; what all send is what all receive."""
    ops = [op for found in calls.values() for op in found if op.name.lower().startswith(_UNEVEN)]
    sent = sum(math.prod(shape) for op in ops for shape in op.inputs)
    received = sum(math.prod(shape) for op in ops for shape in op.outputs)
    return f"{ops[0].name}: {sent} elements sent and {received} received over all ranks" if sent != received else ""
