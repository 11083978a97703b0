"""Snapshots in the job's memory, as candidates for a restore beside the checkpoints on disk."""

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import Manifest, shares
from transom_cli.ckpt.names import age, step_name
from transom_cli.ckpt.restore.reader import Opened, checked_metadata
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.rpc.errors import RpcError


@dataclass(frozen=True)
class MemoryCandidate:
    """A step whose record is known. missing: shares that no node holds with the recorded checksum; parity may restore
    them."""

    step: int
    record: Record
    manifest: Manifest
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{step_name(self.step)} in memory"


def memory_candidates(snapshots: Snapshots) -> tuple[list[MemoryCandidate], list[str]]:
    """List the snapshots in memory, newest first, and what could not be read. Called by one rank, for all."""
    unknown: list[str] = []
    try:
        answers = snapshots.daemon.survey()
    except RpcError as error:
        return [], [f"what is in memory is not known: {error.what}"]
    for node, answer in answers.items():
        if "error" in answer:
            unknown.append(f"what the memory of {node} holds is not known: {answer['error']}")
    records: list[Record] = []
    for node, answer in answers.items():
        rows: Any = answer.get("records", ())
        for step, manifest, metadata in rows:
            try:
                record = snapshots.daemon.record(node, step, manifest, metadata)
                record.read  # noqa: B018 - it may be damaged
                records.append(record)
            except RpcError as error:
                unknown.append(f"the record of step {step} on {node} cannot be had: {error.what}")
            except BadManifest as error:
                unknown.append(f"the record of step {step} on {node} is damaged: {error.what}")
    held: Any = [answer.get("held", ()) for answer in answers.values()]
    return known(records, [row for of_node in held for row in of_node]), unknown


def known(records: Iterable[Record], held: Iterable[Sequence[Any]]) -> list[MemoryCandidate]:
    """The steps of these records, newest first; of one step the one that was made last.

    held: what all nodes hold, as [step, file, sum].
    """
    places = {tuple(row) for row in held}
    by_manifest = {record.read: record for record in records}
    found = []
    for made, record in by_manifest.items():
        missing = tuple(one.name for one in shares(made) if (made.step, one.name, one.xxh3_128) not in places)
        found.append(MemoryCandidate(made.step, record, made, missing))
    found.sort(key=lambda c: (c.step, age(c.manifest.attempt) or (0, 0, 0), c.manifest.created), reverse=True)
    return found


class InMemory:
    """A snapshot as the source of a restore. Each share is brought to this node when it is opened."""

    touched = False

    def __init__(self, snapshots: Snapshots, found: MemoryCandidate, directory: Path) -> None:
        self.path = directory
        self._snapshots, self._found = snapshots, found
        self._entries = {entry.name: entry for entry in found.manifest.files}
        self.where: dict[str, str] = {}  # by share: whose memory it came from

    def metadata(self, *, allow_code: bool = False) -> Metadata:
        return checked_metadata(self._found.record.metadata, allow_code=allow_code)

    def open(self, name: str, *, check: bool = True) -> Opened:
        entry = self._entries[name]
        fd, size, segments, where, checked = self._snapshots.daemon.fetch(self._found.step, entry, check=check)
        self.where[name] = where
        total = "" if checked else entry.xxh3_128
        try:
            if len(segments) == 1:
                own = self._snapshots.lent(fd)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # map at once, without a fault for every few pages
                data = own.map if own is not None else mmap.mmap(fd, size, flags=flags)
                return Opened(data, *segments[0], total)
            whole = mmap.mmap(-1, max(1, sum(length for _, length in segments)))
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as memory:
                for start, length in segments:
                    whole.write(memory[start : start + length])
            return Opened(whole, 0, entry.size, total)
        finally:
            os.close(fd)


def sources(wheres: list[dict[str, str]]) -> str:
    """Where the ranks got it from, in words: "own memory", "own memory, the memory of n2"."""
    return ", ".join(sorted({where for of_rank in wheres for where in of_rank.values()})) or "memory"
