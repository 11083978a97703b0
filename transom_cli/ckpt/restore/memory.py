"""Snapshots in the job's memory, as candidates for a restore beside the checkpoints on disk."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.restore.reader import Opened, checked_metadata
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.snapshot.inventory import known
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.rpc.errors import RpcError


@dataclass(frozen=True)
class MemoryCandidate:
    """A step whose record is known. missing: shares that no node holds; parity may restore them."""

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
    records: dict[Manifest, Record] = {}
    places = []
    held = {node: answer["held"] for node, answer in answers.items() if isinstance(answer.get("held"), list)}
    for node in held:
        rows = answers[node].get("records")
        for step, manifest, metadata in rows if isinstance(rows, list) else ():
            try:
                record = snapshots.daemon.record(node, step, manifest, metadata)
                made = record.read
                records[made] = record
                places.append((node, made))
            except RpcError as error:
                unknown.append(f"the record of step {step} on {node} cannot be had: {error.what}")
            except BadManifest as error:
                unknown.append(f"the record of step {step} on {node} is damaged: {error.what}")
    found = [MemoryCandidate(k.step, records[k.manifest], k.manifest, k.missing) for k in known(places, held)]
    return found, unknown


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
