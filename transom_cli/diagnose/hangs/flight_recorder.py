"""Parse flight recorder dumps into groups and collectives, and find out which rank waits for whom. Pure.

A rank waits in its first call that is not complete: its head. It waits for each member of that group that

- has not made the call yet (the CPU makes calls in order), or
- has made it, but waits in an earlier call of its own (a GPU also runs them in order).

Such a member may itself wait: pipeline stages wait for a stage whose rank is in its data loader. The culprit is a rank
that others wait for and that waits for nothing. Without such a rank, either the wait ends in calls that all members
have as their head (the communication is stuck), or it is a cycle.

The dump format (torch, c10d/FlightRecorder.hpp; versions 2.4 to 2.10 agree on the fields used here): `pg_config` names
each group's ranks, `entries` are this rank's newest calls in call order. A collective's number, `collective_seq_id`, is
the same on all ranks of its group; sends and receives are numbered separately. Sizes are in elements, times in
nanoseconds of the node's wall clock.

Nothing here trusts a dump: missing or mistyped fields are skipped and noted. gloo's dumps record neither start nor end,
so an entry is complete once it is retired, even by an error; and only the first group names its ranks.
"""

import json
import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.core.stacks import clean
from transom_cli.diagnose.hangs.stacks import short
from transom_cli.plural import several


@dataclass(frozen=True)
class Count:
    """How far one rank is in one group, in collectives since the group was created.

    A rank without any information has no Count.

    Args:
        enqueued: called so far.
        completed: complete, including all before them.
        started: whether the first incomplete one has begun on the device; None if not recorded.
        order: a number that grows with the rank's calls in all groups, of the first incomplete one.
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
    """name: for display. members: global ranks. counts: by rank, where known."""

    name: str
    members: tuple[int, ...]
    counts: Mapping[int, Count]

    def absent(self, seq: int) -> frozenset[int]:
        """Return the members that have not made the call with this number."""
        return frozenset(rank for rank, count in self.counts.items() if count.enqueued < seq)


Head = tuple[int, int]  # the group's index, and the call's number in it


@dataclass(frozen=True)
class Waiting:
    """Who waits for whom.

    Args:
        heads: by rank, where it waits.
        edges: by rank, for whom it waits.
        roots: ranks that others wait for and that wait for nothing.
        held: ranks that wait for nobody, in a call that all members have as their head.
        ring: ranks that wait for each other.
    """

    heads: Mapping[int, Head]
    edges: Mapping[int, frozenset[int]]
    roots: tuple[int, ...]
    held: tuple[int, ...]
    ring: tuple[int, ...]


def follow_waits(groups: Iterable[Group], more: Mapping[int, Collection[int]] | None = None) -> Waiting:
    """Follow the waits over all groups. more: by rank, further ranks that it waits for (sends and receives)."""
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
    """Return the ranks of the closed cycles. Ranks with the same edges are treated together."""
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
    return tuple(sorted(ring & frozenset().union(*(edges[rank] for rank in ring))))  # without those that only wait


NEWEST = 500  # entries of a dump that are read: a hang is at the end
RANKS = 1 << 20
VERSIONS = (2, 4), (2, 10)  # from, to
_PEER = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")
_WORLD = "default_pg"


@dataclass(frozen=True)
class Op:
    """One call.

    Args:
        inputs: shapes; outputs likewise.
        types: of inputs and outputs.
        started: None if not recorded.
        created: seconds.
        record: grows with this rank's calls in all groups.
        place: the training's own call, if frames are recorded.
    """

    seq: int
    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    done: bool
    started: bool | None
    created: float | None
    record: int
    place: str = ""

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in self.inputs[:3])
        return f"{self.name}{f'({shapes})' if shapes else ''}"


@dataclass(frozen=True)
class Peer:
    """A send or receive that is not complete. other: the global rank at the other end."""

    sends: bool
    other: int


@dataclass(frozen=True)
class View:
    """One group as one rank saw it.

    Args:
        members: () if the dump does not name them.
        rounds: the calls with one number (several if coalesced); the oldest may have been overwritten.
        closed: whether an entry's end is recorded, and not only that nobody waits for it any more.
    """

    name: str
    about: str
    members: tuple[int, ...]
    rounds: Mapping[int, tuple[Op, ...]]
    count: Count
    peers: tuple[Peer, ...]
    closed: bool


@dataclass(frozen=True)
class Flight:
    """overwritten: whether entries before the oldest were lost. known: groups that the dump names, used or not."""

    rank: int
    version: str
    views: tuple[View, ...]
    known: Mapping[str, tuple[int, ...]]
    overwritten: bool
    notes: tuple[str, ...] = ()


def read(rank: int, raw: Mapping[str, Any]) -> Flight:
    """Parse the dictionary of `dumps.load`. Never raises: the notes say what could not be used."""
    version = clean(str(raw.get("version")))[:20]
    notes = [f"rank {rank}: {trouble}"] if (trouble := _about(version)) else []
    entries = raw.get("entries") or []
    newest = entries[-NEWEST:]
    usable = [e for e in newest if isinstance(e, dict) and isinstance(e.get("collective_seq_id"), int) and _group(e)[0]]
    if len(usable) < len(newest):
        notes.append(f"rank {rank}: {several(len(newest) - len(usable), 'entry', 'entries')} in an unknown format")
    known = _known(raw.get("pg_config"))
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in usable:
        by_group.setdefault(_group(entry), []).append(entry)
    views = tuple(_view(rank, group, known, found) for group, found in by_group.items())
    first = entries[0].get("record_id") if entries and isinstance(entries[0], dict) else 0
    overwritten = len(entries) > NEWEST or not isinstance(first, int) or first > 0
    return Flight(rank, version, views, known, overwritten, tuple(notes))


def _about(version: str) -> str:
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal() and len(part) < 6)
    if len(numbers) != 2:
        return f"a dump of an unknown version ({version!r})"
    if not VERSIONS[0] <= numbers <= VERSIONS[1]:
        return f"a dump of version {version}; versions 2.4 to 2.10 are supported"
    return ""


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and description, or ("", "")."""
    found = entry.get("process_group")
    if isinstance(found, (tuple, list)) and len(found) == 2 and all(isinstance(x, str) for x in found):
        return clean(found[0])[:200], clean(found[1])[:200]
    return "", ""


def _known(config: Any) -> dict[str, tuple[int, ...]]:
    known = {}
    for key, about in config.items() if isinstance(config, dict) else ():
        ranks = about.get("ranks") if isinstance(about, dict) else None
        if isinstance(ranks, str) and len(ranks) < 16 * RANKS:
            try:
                ranks = json.loads(ranks)
            except (ValueError, RecursionError):
                continue
        if isinstance(ranks, (list, tuple)) and all(isinstance(r, int) and 0 <= r < RANKS for r in ranks):
            known[clean(str(key))[:200]] = tuple(sorted(set(ranks)))
    return known


def _view(
    rank: int, group: tuple[str, str], known: Mapping[str, tuple[int, ...]], entries: list[dict[str, Any]]
) -> View:
    name, about = group
    members = known.get(name) or (known.get("", ()) if about == _WORLD else ())  # gloo omits the name
    closed = any(e.get("state") in ("started", "completed") for e in entries)
    timed = any(e.get("time_discovered_started_ns") for e in entries)
    rounds: dict[int, list[Op]] = {}
    peers = []
    for entry in entries:
        if found := _PEER.search(str(entry.get("profiling_name"))[:100]):
            if not _done(entry, closed):
                peers += _peer(found, rank, members)
        elif not entry.get("is_p2p"):
            op = _op(entry, closed, timed)
            rounds.setdefault(op.seq, []).append(op)
    return View(
        name, about, members if rank in members else (),
        {seq: tuple(ops) for seq, ops in sorted(rounds.items())},
        _count(entries, rounds), tuple(peers), closed,
    )  # fmt: skip


def _count(entries: list[dict[str, Any]], rounds: Mapping[int, list[Op]]) -> Count:
    enqueued = max(int(e["collective_seq_id"]) for e in entries)
    open_ones = [seq for seq, ops in rounds.items() if not all(op.done for op in ops)]
    if not open_ones:
        return Count(enqueued, enqueued)
    first = min(open_ones)
    begun = [op.started for op in rounds[first] if not op.done]
    order = min(op.record for op in rounds[first])
    return Count(enqueued, first - 1, None if None in begun else all(begun), order)


def _done(entry: Mapping[str, Any], closed: bool) -> bool:
    return entry.get("state") == "completed" or (bool(entry.get("retired")) and not closed)


def _peer(found: re.Match[str], rank: int, members: tuple[int, ...]) -> list[Peer]:
    """Parse `send 1->2` or `recv 3<-0`: numbers within the group, the rank's own first."""
    at = int(found[3])
    other = members[at] if at < len(members) else -1
    return [Peer(found[1] == "send", other)] if other not in (-1, rank) else []


def _op(entry: Mapping[str, Any], closed: bool, timed: bool) -> Op:
    done = _done(entry, closed)
    created = entry.get("time_created_ns")
    started: bool | None = None
    if closed and timed:
        started = done or entry.get("state") == "started" or bool(entry.get("time_discovered_started_ns"))
    return Op(
        seq=entry["collective_seq_id"],
        name=clean(str(entry.get("profiling_name")))[:80].rpartition(":")[2],
        inputs=_shapes(entry.get("input_sizes")),
        outputs=_shapes(entry.get("output_sizes")),
        input_types=_types(entry.get("input_dtypes")),
        output_types=_types(entry.get("output_dtypes")),
        done=done,
        started=started,
        created=created / 1e9 if isinstance(created, int) and created > 0 else None,
        record=entry["record_id"] if isinstance(entry.get("record_id"), int) else 0,
        place="" if done else _own_call(entry.get("frames")),
    )


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    shapes = value[:64] if isinstance(value, (list, tuple)) else ()
    return tuple(tuple(n for n in s[:16] if isinstance(n, int)) for s in shapes if isinstance(s, (list, tuple)))


def _types(value: Any) -> tuple[str, ...]:
    return tuple(clean(str(x))[:20] for x in value[:64]) if isinstance(value, (list, tuple)) else ()


def _own_call(frames: Any) -> str:
    """Return the innermost frame of the training's own code, or ""."""
    for frame in frames[:64] if isinstance(frames, (list, tuple)) else ():
        if isinstance(frame, dict):
            file, library = short(str(frame.get("filename"))[:500])
            if not library:
                return clean(f"{frame.get('name')} ({file}:{frame.get('line')})")[:160]
    return ""
