"""A folder of a hang's evidence, read and judged: what the agents kept of an incident, or whatever a person points at.

    rank-5.stack.txt, rank-5.proc.json, rank-5.flight/flight-0-5       as `agent.evidence` writes them
    comm_lib_trace_rank_5, nccl_trace_rank_5, anything5                torch's own dumps, by content
    stack_rank5.txt, 5.txt                                             py-spy's or faulthandler's, by content

The rank is the number after "rank", else the last one in the name. Nodes are known from the attempt's beat tables, or
where files lie in a folder a node. Files that are nothing of the kind are passed over; what cannot be read is said.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from transom_cli.beats.table import BadTable, decode
from transom_cli.diagnose.clue import Category, Clue
from transom_cli.diagnose.hangs import clusters, dumps, matching, syndromes, unpickle
from transom_cli.diagnose.hangs.flight import Flight, read
from transom_cli.diagnose.hangs.places import place
from transom_cli.errors import printable

HEAD = 8192  # bytes that tell what a file is
TEXT = 8 << 20  # bytes of a stack's dump
FILES = 100_000  # of a folder
NOTES = 8  # of what could not be used, told
_RANKED = re.compile(r"rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
_PROC = re.compile(r"rank-(\d{1,7})\.proc\.json$")


class Holds(enum.Enum):
    """What a file holds, by its head."""

    STACK = "stack"
    FLIGHT = "flight recorder"


@dataclass
class Evidence:
    """What a folder holds, by rank. notes: what could not be used, in words."""

    stacks: dict[int, clusters.Stand] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[syndromes.Rank, ...]:
        """Those of whose process or stack anything is known."""
        found = sorted(self.stacks.keys() | self.states.keys())
        return tuple(syndromes.Rank(self._stand(rank), self.states.get(rank, "")) for rank in found)

    def _stand(self, rank: int) -> clusters.Stand:
        return self.stacks.get(rank, clusters.Stand(rank, self.nodes.get(rank, ""), place(None)))


def is_dump(path: Path) -> bool:
    """Whether a file is a stack's or a flight recorder's dump, by its head. False for what cannot be read."""
    return _kind(path) is not None


def read_hang(folder: Path) -> tuple[Clue, ...]:
    """What a folder's dumps (or one dump) tell of a hang, () where there are none.

    The first clue is of all dumps together, in C4's classes (source "collectives", or "stacks" where there are no
    others); beside flight recorder dumps a second one tells what the stacks say by themselves. Never raises for what
    stands in a file.
    """
    return clues(gather(folder))


def clues(evidence: Evidence) -> tuple[Clue, ...]:
    """As `read_hang`, of what was gathered."""
    matched = matching.match(list(evidence.flights.values())) if evidence.flights else None
    verdict = syndromes.classify(evidence.ranks, matched)
    found = []
    if verdict is not None:
        source = "collectives" if matched is not None else "stacks"
        found.append(syndromes.as_clue(verdict, evidence.nodes, source))
    if matched is not None and (by_stacks := clusters.clue([rank.stand for rank in evidence.ranks])) is not None:
        found.append(by_stacks)
    notes = tuple((evidence.notes + (list(matched.notes) if matched is not None else []))[:NOTES])
    if notes and found:
        found[0] = replace(found[0], evidence=(*found[0].evidence, *notes))
    elif notes:
        found.append(Clue("collectives", Category.UNKNOWN, 0.0, notes))
    return tuple(found)


def gather(folder: Path, *, flights: bool = True) -> Evidence:
    """Read whatever is a dump in a folder and below it. Of several dumps of one rank the newest file counts.

    flights: False leaves out flight recorders, which take a hundred times as long as stacks.
    """
    evidence = Evidence()
    paths = [folder] if folder.is_file() else sorted(_files(folder), key=_mtime)
    evidence.nodes.update(_nodes(folder))
    by_folder = _by_folder(folder, paths)
    for path in paths:
        if found := _PROC.search(path.name):
            _take_state(evidence, int(found[1]), path)
            continue
        rank = _rank(path)
        kind = _kind(path) if rank is not None else None
        if rank is None or kind is None or (kind is Holds.FLIGHT and not flights):
            continue
        if rank not in evidence.nodes and by_folder.get(path):
            evidence.nodes[rank] = by_folder[path]
        _take(evidence, rank, path, kind)
    return evidence


def _kind(path: Path) -> Holds | None:
    head = _bytes(path, HEAD)
    if head is None:
        return None
    if unpickle.is_dump(head):
        return Holds.FLIGHT
    return Holds.STACK if dumps.is_stack(head.decode(errors="replace")) else None


def _take(evidence: Evidence, rank: int, path: Path, kind: Holds) -> None:
    data = _bytes(path, unpickle.LIMIT + 1)
    if data is None:
        evidence.notes.append(f"rank {rank}: {printable(path.name)} cannot be read")
    elif kind is Holds.FLIGHT:
        try:
            evidence.flights[rank] = read(rank, unpickle.load(data))
        except unpickle.BadDump as error:
            evidence.notes.append(f"rank {rank}: {printable(path.name)}: {error.what.lower()}: {printable(error.why)}")
    else:
        text = data[:TEXT].decode(errors="replace")
        node = evidence.nodes.get(rank, "")
        evidence.stacks[rank] = clusters.Stand(rank, node, place(dumps.parse(text).main), dumps.fatal(text))


def _take_state(evidence: Evidence, rank: int, path: Path) -> None:
    try:
        found = json.loads(_bytes(path, TEXT) or b"")
    except (ValueError, RecursionError):
        return
    state = found.get("state") if isinstance(found, dict) else None
    if isinstance(state, str) and len(state) == 1 and state.isalpha():
        evidence.states[rank] = state


def _rank(path: Path) -> int | None:
    """In the name, else in the folder's, as of `rank-5.flight/`. None for torchrun's, which is no rank."""
    if path.name.startswith("launcher-"):
        return None
    for name in (path.name, path.parent.name):
        if found := _RANKED.search(name):
            return int(found[1])
    found = _NUMBER.search(path.name)
    return int(found[1]) if found else None


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for root, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("."):
                count += 1
                if count > FILES:
                    return
                yield Path(root) / name


def _by_folder(folder: Path, paths: Iterable[Path]) -> dict[Path, str]:
    """Nodes, where all files lie in folders of their own directly below: more than one, and not one a rank."""
    first = {path: path.relative_to(folder).parts for path in paths if path != folder}
    names = {parts[0] for parts in first.values() if len(parts) > 1 and not _RANKED.search(parts[0])}
    if len(names) < 2:
        return {}
    return {path: printable(parts[0])[:64] for path, parts in first.items() if len(parts) > 1 and parts[0] in names}


def _nodes(folder: Path) -> dict[int, str]:
    """Of the attempt that the folder is evidence of (`attempts/<a>/evidence/<incident>`), if it is."""
    attempt = folder.resolve().parent.parent
    nodes: dict[int, str] = {}
    for path in sorted((attempt / "nodes").glob("*.beats"))[:FILES]:
        try:
            table = decode(_bytes(path, TEXT) or b"")
        except BadTable:
            continue
        nodes.update({beat.rank: table.node for beat in table.ranks})
    return nodes


def _bytes(path: Path, most: int) -> bytes | None:
    """None for what is no plain file, or cannot be read. A pipe of that name must not hang us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most) if path.is_file() else None
    except OSError:
        return None


def _mtime(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, str(path)
    except OSError:
        return 0.0, str(path)
