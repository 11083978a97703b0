"""What makes up a snapshot: the launch that made it, its record, and the shares in the ranks' memory."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import FileEntry, Manifest, decode
from transom_cli.ckpt.names import DCP_METADATA, age


@dataclass(frozen=True)
class Launch:
    """One start of all ranks. ``attempt``: as in the names of checkpoints. ``token``: unique to this start.

    Slurm's numbers order the launches. If a launch has none, the latest to arrive counts: a clock could be set back.
    """

    attempt: str
    token: str

    def older_than(self, other: Launch) -> bool:
        """Compare by the numbers of both."""
        mine, theirs = age(self.attempt), age(other.attempt)
        return mine is not None and theirs is not None and mine < theirs


@dataclass(frozen=True)
class Record:
    """The commit of a step: the same bytes on every node that takes part."""

    manifest: bytes
    metadata: bytes  # torch's own file, which the manifest lists with the others

    @cached_property
    def read(self) -> Manifest:
        """Return the decoded manifest. Raises BadManifest, also if torch's own file does not match it."""
        manifest = decode(self.manifest)
        named = next(entry for entry in manifest.files if entry.name == DCP_METADATA)
        if named != FileEntry.of(DCP_METADATA, self.metadata):
            raise BadManifest(f"the record's {DCP_METADATA} is damaged")
        return manifest


Segments = tuple[tuple[int, int], ...]  # (start, bytes) in the memory, one after the other in the file


@dataclass(frozen=True)
class Share:
    """A rank's data file of one step, in a buffer. `sum`: its xxh3_128, as in the manifest."""

    step: int
    file: str
    size: int
    sum: str
    segments: Segments

    def __post_init__(self) -> None:
        if sum(length for _, length in self.segments) != self.size:
            raise ValueError(f"{self.file}: its segments are not its size")


class Buffer:
    """`share` is None while a rank writes there: what is half written is never believed. Closes `fd` in the end."""

    def __init__(self, fd: int, size: int) -> None:
        """Raises OSError, and ValueError for memory that its lender could take away under us (a SIGBUS)."""
        self.fd, self.size = fd, size
        self.share: Share | None = None
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < size:
            raise ValueError("a snapshot's memory must be a memfd that cannot shrink")
        self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.memory = memoryview(self._map)

    def holds(self, share: Share) -> None:
        if any(start < 0 or length < 0 or start + length > self.size for start, length in share.segments):
            raise ValueError(f"{share.file}: a segment is not in its memory")
        self.share = share

    def close(self) -> None:
        """The memory goes with the last process that has it; a view that is in use keeps it for that long."""
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._map.close()
        os.close(self.fd)


def views(memory: memoryview, segments: Sequence[tuple[int, int]]) -> list[memoryview]:
    return [memory[start : start + length] for start, length in segments]


def part(pieces: Sequence[memoryview], start: int, size: int) -> list[memoryview]:
    """`size` bytes from `start` of what these pieces are together. Raises ValueError beyond their end."""
    found, at, end = [], 0, start + size
    for piece in pieces:
        low, high = max(start, at), min(end, at + len(piece))
        if low < high:
            found.append(piece[low - at : high - at])
        at += len(piece)
    if start < 0 or size < 0 or end > at:
        raise ValueError(f"bytes {start} to {end} of {at}")
    return found
