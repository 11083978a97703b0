"""Snapshots in the job's memory, as candidates for a restore beside the checkpoints on disk."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.restore.reading import Opened, checked_metadata
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.snapshot.inventory import known
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.rpc.errors import RpcError


@dataclass(frozen=True)
class Remembered:
    """A step whose record is known. `missing`: shares that no node holds as they are; parity may do."""

    step: int
    record: Record
    manifest: Manifest
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{step_name(self.step)} in memory"


def remembered(snapshots: Snapshots, say: Callable[[str], None]) -> list[Remembered]:
    """Newest first. By one rank, for all."""
    try:
        told = snapshots.questions.survey()
    except RpcError as error:
        say(f"what is in memory is not known: {error.what}")
        return []
    for node, answer in told.items():
        if "error" in answer:
            say(f"what the memory of {node} holds is not known: {answer['error']}")
    records: dict[Manifest, Record] = {}
    places = []
    held = {node: answer["held"] for node, answer in told.items() if isinstance(answer.get("held"), list)}
    for node in held:
        rows = told[node].get("records")
        for step, manifest, metadata in rows if isinstance(rows, list) else ():
            try:
                record = snapshots.questions.record(node, step, manifest, metadata)
                made = record.read
                records[made] = record
                places.append((node, made))
            except RpcError as error:
                say(f"the record of step {step} on {node} cannot be had: {error.what}")
            except BadManifest as error:
                say(f"the record of step {step} on {node} is damaged: {error.what}")
    return [Remembered(k.step, records[k.manifest], k.manifest, k.missing) for k in known(places, held)]


class InMemory:
    """A snapshot as a source for a restore: each share is brought here when it is asked for, checked or to be
    checked."""

    checks = True

    def __init__(self, snapshots: Snapshots, found: Remembered, directory: Path) -> None:
        self.path = directory
        self._snapshots, self._found = snapshots, found
        self._entries = {entry.name: entry for entry in found.manifest.files}
        self.where: dict[str, str] = {}  # by share, from whose memory it came

    def metadata(self, *, allow_code: bool = False) -> Metadata:
        return checked_metadata(self._found.record.metadata, allow_code=allow_code)

    def open(self, name: str, *, check: bool = True) -> Opened:
        entry = self._entries[name]
        fd, size, segments, where, checked = self._snapshots.questions.fetch(self._found.step, entry, check=check)
        self.where[name] = where
        total = "" if checked else entry.xxh3_128
        try:
            if len(segments) == 1:
                own = self._snapshots.lent(fd)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # at once, not by a fault for every few pages
                data = own.map if own is not None else mmap.mmap(fd, size, flags=flags)
                return Opened(data, *segments[0], total)
            whole = mmap.mmap(-1, max(1, sum(length for _, length in segments)))
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as memory:
                for start, length in segments:
                    whole.write(memory[start : start + length])
            return Opened(whole, 0, entry.size, total)
        finally:
            os.close(fd)


def told(wheres: list[dict[str, str]]) -> str:
    """From where the ranks had it, in words: "own memory", "own memory, the memory of n2"."""
    return ", ".join(sorted({where for of_rank in wheres for where in of_rank.values()})) or "memory"
