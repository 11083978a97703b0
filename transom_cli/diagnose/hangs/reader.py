"""Read and diagnose a folder of dumps of a hang: what the agents kept of an incident, or any folder a user names.

    rank-5.stack.txt, rank-5.proc.json, rank-5.flight/flight-0-5       as `agent.evidence` writes them
    ras-n7.txt                                                         NCCL's RAS, or the output of ncclras, by content
    comm_lib_trace_rank_5, nccl_trace_rank_5, anything5                torch's own dumps, by content
    stack_rank5.txt, 5.txt                                             py-spy's or faulthandler's, by content

The rank is the number after "rank", else the last number in the name. Nodes come from the attempt's heartbeat tables,
or from the folders if there is one per node. Other files are skipped; files that cannot be read are reported.
"""

import contextlib
import enum
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from transom_cli.core.stacks import parse_all
from transom_cli.diagnose.clue import Category, Clue
from transom_cli.diagnose.hangs import dumps, matching, ras, syndromes
from transom_cli.diagnose.hangs import dumps as unpickle
from transom_cli.diagnose.hangs import stacks as clusters
from transom_cli.diagnose.hangs.flight_recorder import Flight, read
from transom_cli.diagnose.hangs.stacks import Kind, Place, place
from transom_cli.errors import printable
from transom_cli.heartbeat.aggregate import decode_all
from transom_cli.heartbeat.table import BadTable, decode

HEAD = 8192  # bytes that identify a file
TEXT = 8 << 20  # bytes of a stack dump
FILES = 100_000  # in one folder
NOTES = 8  # most notes reported
_RANKED = re.compile(r"rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
_PROC = re.compile(r"rank-(\d{1,7})\.proc\.json$")


class Holds(enum.Enum):
    """The content of a file, by its head."""

    STACK = "stack"
    FLIGHT = "flight recorder"
    RAS = "NCCL RAS"


@dataclass
class Evidence:
    """The content of a folder, by rank. notes: what could not be used, as text."""

    stacks: dict[int, clusters.Stand] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    comms: tuple[ras.Communicator, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[syndromes.Rank, ...]:
        """Return the ranks whose process or stack is known."""
        found = sorted(self.stacks.keys() | self.states.keys())
        return tuple(syndromes.Rank(self._stand(rank), self.states.get(rank, "")) for rank in found)

    def _stand(self, rank: int) -> clusters.Stand:
        return self.stacks.get(rank, clusters.Stand(rank, self.nodes.get(rank, ""), place(None)))


def is_dump(path: Path) -> bool:
    """Whether a file is a stack or flight recorder dump, by its head. False if it cannot be read."""
    return _kind(path) is not None


def read_hang(folder: Path) -> tuple[Clue, ...]:
    """Return what the dumps of a folder (or one dump) show of a hang; () without dumps.

    The first clue combines all dumps, in C4's classes (source "collectives", or "stacks" if there are no others). With
    flight recorder dumps, a second clue says what the stacks show on their own. Never raises for the content of a file.
    """
    return clues(gather(folder))


def clues(evidence: Evidence) -> tuple[Clue, ...]:
    """Return the clues of gathered evidence, like `read_hang`."""
    matched = matching.match(list(evidence.flights.values())) if evidence.flights else None
    live, said = ras.match(evidence.comms, evidence.pids, evidence.nodes)
    if matched is None or (live is not None and not matched.findings):
        matched = live or matched
    elif live is not None:
        said = (*said, live.findings[0].words)
    verdict = syndromes.classify(evidence.ranks, matched)
    found = []
    if verdict is not None:
        source = "collectives" if matched is not None else "stacks"
        found.append(syndromes.as_clue(verdict, evidence.nodes, source))
    if matched is not None and (by_stacks := clusters.clue([rank.stand for rank in evidence.ranks])) is not None:
        found.append(by_stacks)
    notes = (*evidence.notes, *said, *(matched.notes if matched is not None else ()))[:NOTES]
    if notes and found:
        found[0] = replace(found[0], evidence=(*found[0].evidence, *notes))
    elif notes:
        found.append(Clue("collectives", Category.UNKNOWN, 0.0, notes))
    return tuple(found)


def gather(folder: Path, *, flights: bool = True) -> Evidence:
    """Read all dumps in a folder and below it. The newest of several dumps of one rank counts.

    Args:
        flights: read flight recorders too, which takes a hundred times as long as stacks.
    """
    evidence = Evidence()
    paths = [folder] if folder.is_file() else sorted(_files(folder), key=_mtime)
    evidence.nodes.update(_nodes(folder))
    by_folder = _by_folder(folder, paths)
    for path in paths:
        if found := _PROC.search(path.name):
            _take_state(evidence, int(found[1]), path)
            continue
        rank, kind = _rank(path), _kind(path)
        if kind is Holds.RAS:
            comms = ras.parse((_bytes(path, TEXT) or b"").decode(errors="replace"))
            evidence.comms = max(evidence.comms, comms, key=len)  # two nodes were asked: one may have known less
        if rank is None or kind in (None, Holds.RAS) or (kind is Holds.FLIGHT and not flights):
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
    text = head.decode(errors="replace")
    return Holds.RAS if ras.is_answer(text) else Holds.STACK if dumps.is_stack(text) else None


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
        evidence.stacks[rank] = clusters.Stand(rank, node, _place(text), dumps.fatal(text))


def _place(text: str) -> Place:
    """Return where a rank is. One that waits for the workers of its DataLoader is where one of them is."""
    here = place(dumps.parse(text).main)
    if here.kind is not Kind.LOADER:
        return here
    lines = (place(worker.main).own_line for worker in parse_all(text)[1:])
    # a forked worker's stack contains that of its parent: a worker without work is where the rank is
    line = next((f"{line}, in a worker" for line in lines if line not in ("", here.own_line)), here.own_line)
    return replace(here, own_line=line)


def _take_state(evidence: Evidence, rank: int, path: Path) -> None:
    try:
        found = json.loads(_bytes(path, TEXT) or b"")
    except (ValueError, RecursionError):
        return
    state, pid = (found.get("state"), found.get("pid")) if isinstance(found, dict) else (None, None)
    if isinstance(state, str) and len(state) == 1 and state.isalpha():
        evidence.states[rank] = state
    if isinstance(pid, int):
        evidence.pids[rank] = pid


def _rank(path: Path) -> int | None:
    """Return the rank in the file's name, else in its folder's (`rank-5.flight/`). None for torchrun's own dump."""
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
    """Return the nodes if every file is in a folder directly below: more than one folder, and not one per rank."""
    first = {path: path.relative_to(folder).parts for path in paths if path != folder}
    names = {parts[0] for parts in first.values() if len(parts) > 1 and not _RANKED.search(parts[0])}
    if len(names) < 2:
        return {}
    return {path: printable(parts[0])[:64] for path, parts in first.items() if len(parts) > 1 and parts[0] in names}


def _nodes(folder: Path) -> dict[int, str]:
    """Return the nodes of the attempt that the folder belongs to (`attempts/<a>/evidence/<incident>`), if any."""
    attempt = folder.resolve().parent.parent
    nodes: dict[int, str] = {}
    with contextlib.suppress(BadTable):
        _, heard = decode_all(_bytes(attempt / "heartbeats", TEXT) or b"")
        nodes.update((beat.rank, one.table.node) for one in heard for beat in one.table.ranks)
    if nodes:
        return nodes  # newer than the nodes' own files
    for path in sorted((attempt / "nodes").glob("*.beats"))[:FILES]:
        try:
            table = decode(_bytes(path, TEXT) or b"")
        except BadTable:
            continue
        nodes.update({beat.rank: table.node for beat in table.ranks})
    return nodes


def _bytes(path: Path, most: int) -> bytes | None:
    """Return the content, or None for what is not a regular file or cannot be read. Never blocks on a named pipe."""
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
