"""Incremental checkpoints, as the snapshot daemons know them: what to write of a step, and what to link from its base.

The ranks plan them (`save.incremental`). Each rank tells its own node's daemon what to write of its share (`Changes`),
and rank 0 tells the leading daemon which files of the base stay in use (`Increment`). A step without a plan is written
whole from its snapshot, and so is one whose plan cannot be carried out: a daemon was replaced, or a file system has no
hard links. Nothing here outlives the daemon.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import xxhash

from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.snapshot.record import Record

_REMEMBERED = 4  # steps
T = TypeVar("T")

BUFFER, BLOB = 0, 1  # where the bytes of a segment are
Segment = tuple[int, int, int]  # where, start, bytes
_Stamp = tuple[int, int, int]  # inode, bytes, time of the last change


@dataclass(frozen=True)
class Changes:
    """A rank's new data file: segments of its snapshot's memory, and of `blob`, which holds what is around tensors."""

    entry: FileEntry
    segments: tuple[Segment, ...]
    blob: bytes

    def pieces(self, memory: memoryview) -> Iterator[memoryview]:
        sources = (memory, memoryview(self.blob))
        for where, start, length in self.segments:
            yield sources[where][start : start + length]


@dataclass(frozen=True)
class Increment:
    """A checkpoint as it will be on disk. links: pairs of a file's name in it and in the checkpoint of step `base`."""

    record: Record
    base: int | None
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Written:
    manifest: str = ""  # its xxh3_128
    stamps: dict[str, _Stamp] = field(default_factory=dict)  # by file


class Increments:
    """Thread-safe."""

    def __init__(self) -> None:
        self._plans: dict[int, Increment] = {}
        self._changes: dict[int, dict[str, Changes]] = {}
        self._written: dict[int, _Written] = {}  # by step: checkpoints that were written as planned
        self._lock = threading.Lock()

    @property
    def base(self) -> tuple[int, str] | None:
        """The step that the next increment may refer to, and the xxh3_128 of its manifest."""
        with self._lock:
            step = max(self._written, default=None)
            return None if step is None else (step, self._written[step].manifest)

    @property
    def used(self) -> frozenset[int]:
        """Steps whose files are about to be linked: they stay for now."""
        with self._lock:
            return frozenset(plan.base for plan in self._plans.values() if plan.base is not None)

    def plan(self, step: int, plan: Increment) -> None:
        with self._lock:
            self._plans[step] = plan
            _forget_old(self._plans)

    def changes(self, step: int, changes: Changes) -> None:
        with self._lock:
            self._changes.setdefault(step, {})[changes.entry.name] = changes
            _forget_old(self._changes)

    def take_plan(self, step: int) -> Increment | None:
        """The plan of that step. It is used once: another attempt to write the step writes it whole."""
        with self._lock:
            return self._plans.pop(step, None)

    def changes_of(self, step: int, file: str) -> Changes | None:
        with self._lock:
            return self._changes.get(step, {}).get(file)

    def over(self, step: int) -> None:
        with self._lock:
            self._plans.pop(step, None)
            self._changes.pop(step, None)

    def clear(self) -> None:
        """What is on disk may have changed: the next checkpoint is whole."""
        with self._lock:
            self._plans.clear()
            self._changes.clear()
            self._written.clear()

    def written(self, directory: Path, plan: Increment) -> None:
        """The checkpoint of that plan is published, unless another one of its step was there already."""
        step = plan.record.read.step
        path = directory / step_name(step)
        stamps = None
        try:
            if (path / MANIFEST).read_bytes() == plan.record.manifest:
                stamps = {entry.name: _stamp(path / entry.name) for entry in plan.record.read.files}
        except OSError:
            pass
        if stamps is not None:
            with self._lock:
                self._written[step] = _Written(xxhash.xxh3_128_hexdigest(plan.record.manifest), stamps)
                _forget_old(self._written)

    def link(self, directory: Path, work: Path, plan: Increment) -> None:
        """Link the files of the base that stay in use. Raises OSError, and BadFile if one is not as it was written.

        Then the next checkpoint is written in full too.
        """
        if plan.base is None:
            return
        with self._lock:
            known, base = self._written.get(plan.base, _Written()), directory / step_name(plan.base)
        try:
            for name, source in plan.links:
                os.link(base / source, work / name)
                if _stamp(work / name) != known.stamps.get(source):
                    raise BadFile(f"{source} of {base.name}, to which it refers, is not as it was written")
        except (OSError, BadFile):
            with self._lock:
                self._written.clear()
            raise


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _forget_old(steps: dict[int, T]) -> None:
    for old in sorted(steps)[:-_REMEMBERED]:
        del steps[old]
