"""One rank's flight recorder dump as values: its groups, and the collectives in each, by number. Pure.

The format (torch, c10d/FlightRecorder.hpp; versions 2.4 to 2.10 are alike in what is used here): `pg_config` names each
group's ranks, `entries` are the newest calls of this rank in the order of the calls. A collective's number,
`collective_seq_id`, is the same on all ranks of its group; sends and receives are numbered apart. Sizes are in
elements, times in nanoseconds of the node's wall clock.

Nothing here trusts a dump: what is missing or of another type is left out and noted. Of gloo's dumps, which record
neither start nor end, an entry is over when it is retired, be it by an error; and groups other than the first do not
name their ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.core.stacks import clean
from transom_cli.diagnose.hangs.places import short
from transom_cli.diagnose.hangs.waits import Count
from transom_cli.plural import several

NEWEST = 500  # entries of a dump that are looked at: a hang is at the end
RANKS = 1 << 20
VERSIONS = (2, 4), (2, 10)  # from, to
_PEER = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")
_WORLD = "default_pg"


@dataclass(frozen=True)
class Op:
    """One call. inputs, outputs: the shapes; types: of inputs and of outputs. started: None where it is not recorded.
    created: seconds. record: grows with this rank's calls, in
    all groups. place: the training's own call, where frames are recorded."""

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
    """A send or receive that is not over. other: the global rank at its other end."""

    sends: bool
    other: int


@dataclass(frozen=True)
class View:
    """One group as one rank has seen it. members: () where the dump does not name them. rounds: the calls of one
    number (several where they were coalesced); the oldest may have been overwritten. closed: whether an entry's end is
    recorded as such, and not only that nobody waits for it any more."""

    name: str
    about: str
    members: tuple[int, ...]
    rounds: Mapping[int, tuple[Op, ...]]
    count: Count
    peers: tuple[Peer, ...]
    closed: bool


@dataclass(frozen=True)
class Flight:
    """overwritten: whether entries were lost before the oldest one. known: groups that the dump names, used or not."""

    rank: int
    version: str
    views: tuple[View, ...]
    known: Mapping[str, tuple[int, ...]]
    overwritten: bool
    notes: tuple[str, ...] = ()


def read(rank: int, raw: Mapping[str, Any]) -> Flight:
    """Of `unpickle.load`'s dictionary. Never raises: what cannot be used is said in the notes."""
    version = clean(str(raw.get("version")))[:20]
    notes = [f"rank {rank}: {trouble}"] if (trouble := _about(version)) else []
    entries = raw.get("entries") or []
    newest = entries[-NEWEST:]
    usable = [e for e in newest if isinstance(e, dict) and isinstance(e.get("collective_seq_id"), int) and _group(e)[0]]
    if len(usable) < len(newest):
        notes.append(
            f"rank {rank}: {several(len(newest) - len(usable), 'entry', 'entries')} of a form that is not known"
        )
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
        return f"a dump without a version that is known ({version!r})"
    if not VERSIONS[0] <= numbers <= VERSIONS[1]:
        return f"a dump of version {version}; 2.4 to 2.10 are known"
    return ""


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description; ("", "") where there is none."""
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
    members = known.get(name) or (known.get("", ()) if about == _WORLD else ())  # gloo leaves the name out
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
    """`send 1->2`, `recv 3<-0`: numbers within the group, one's own first."""
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
    """The innermost frame that is the training's own; "" for none."""
    for frame in frames[:64] if isinstance(frames, (list, tuple)) else ():
        if isinstance(frame, dict):
            file, library = short(str(frame.get("filename"))[:500])
            if not library:
                return clean(f"{frame.get('name')} ({file}:{frame.get('line')})")[:160]
    return ""
