"""Read a checkpoint's data files, on disk or in memory: map them, and copy to the tensors with several threads.

Files that our writer wrote are known byte for byte: the bytes around a tensor are compared with the expected envelope,
and the tensor's bytes are taken from between. Anything else (a checkpoint by another torch, or by DCP itself) is left
to torch.load.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from transom_cli.ckpt.failures import BadFile, StateMismatch
from transom_cli.ckpt.files import digest_segments
from transom_cli.ckpt.manifest import FileEntry, Manifest
from transom_cli.ckpt.names import DCP_METADATA
from transom_cli.ckpt.progress import CHECKING, LOADING, PartCounter
from transom_cli.ckpt.progress import Part as WorkPart
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.restore.read_plan import Part, Parts, Piece, Wanted, divide, exchange, parts, plan
from transom_cli.ckpt.save.fast_copy import Copier
from transom_cli.ckpt.save.fast_copy import Piece as Bytes
from transom_cli.ckpt.save.layout import Envelope, envelope
from transom_cli.ckpt.tree import Flat, is_plain

_TURN = 256 << 20  # bytes copied between two progress reports


@dataclass(frozen=True)
class Opened:
    """A data file: `size` bytes from `start` of `data`. total: the expected xxh3_128 if it is not verified yet."""

    data: mmap.mmap
    start: int
    size: int
    total: str = ""


class Source(Protocol):
    """A checkpoint. The files of a snapshot in memory are checked when they are opened, so open few."""

    path: Path  # for DCP; a snapshot in memory has no path of its own
    touched: bool  # a load may have overwritten live state

    def metadata(self, *, allow_code: bool = False) -> Metadata: ...

    def open(self, name: str, *, check: bool = True) -> Opened:
        """Open a file. Without `check` the reader may have to verify it, and opens damaged files again."""
        ...


class OnDisk:
    """files: the entries of the manifest by name; without them, nothing is verified here."""

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.path = path
        self.touched = False
        self.files = {entry.name: entry for entry in manifest.files} if manifest is not None else {}

    def metadata(self, *, allow_code: bool = False) -> Metadata:
        data = (self.path / DCP_METADATA).read_bytes()
        entry = self.files.get(DCP_METADATA)
        if entry is not None and entry != FileEntry.of(DCP_METADATA, data):
            raise BadFile(f"{DCP_METADATA} is damaged (its checksum differs)")
        return checked_metadata(data, allow_code=allow_code)

    def open(self, name: str, *, check: bool = True) -> Opened:
        if self.files and name not in self.files:
            raise StateMismatch(f"torch's own metadata names {name}, which the manifest does not list")
        with (self.path / name).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return Opened(data, 0, len(data))


def checked_metadata(data: bytes, *, allow_code: bool = False) -> Metadata:
    """Load torch's own metadata.

    Raises NeedsCode, and StateMismatch where it is not that of a Checkpointer's checkpoint.
    """
    metadata = safe_unpickle.metadata(data, allow_code=allow_code)
    if not isinstance(metadata, Metadata) or not isinstance(metadata.planner_data, dict):
        raise StateMismatch("torch's own metadata is not that of a checkpoint of ours")
    stored: Any = metadata.storage_data
    names = {info.relative_path for info in stored.values()} if isinstance(stored, dict) else set()
    for name in names:
        if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
            raise StateMismatch(f"torch's own metadata names a file outside the checkpoint: {name!r}")
    return metadata


class MappedReader:
    """Reads files that are in memory, or mapped."""

    def __init__(
        self, source: Source, metadata: Metadata, progress: RestoreProgress, *, allow_code: bool = False
    ) -> None:
        self._allow_code = allow_code
        self._source = source
        self._metadata = metadata
        self._progress = progress
        self._near: dict[str, Wanted] = {}
        self._far: dict[str, Wanted] = {}
        self._whole: dict[str, Opened] = {}  # what was checked, by name
        self._copier = Copier()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="transom-sum")

    def plan(self, targets: Flat, ranks: Ranks) -> int:
        """Choose what to read where.

        Returns:
            A number with a bit for each file that this rank verifies as it loads it.
        """
        self._near, self._far = divide(plan(self._metadata, targets), ranks)
        return 0

    def prepare(self, verified: list[int], ranks: Ranks) -> str:
        """Verify what no rank verifies as it loads it. Return "" or what is wrong. A collective."""
        return ""

    def place(self, targets: Flat, ranks: Ranks) -> None:
        """Read what is wanted. A collective."""
        trouble: Exception | None = None
        try:
            self._progress.loading(sum(length for name, some in self._near.items() for *_, length in parts(name, some)))
            for name, wanted in self._near.items():
                self._take(name, wanted, targets)
        except Exception as error:
            trouble = error
        requested = [part for name, wanted in self._far.items() for part in parts(name, wanted)]
        found = exchange(requested, ranks, self._serve)
        for name, wanted in self._far.items():
            self._put(name, wanted, found, targets)
        if trouble is not None:
            raise trouble

    def finish(self, targets: Flat) -> None:
        """Read what is wanted of files that other ranks have verified."""

    def _take(self, name: str, wanted: Wanted, targets: Flat) -> None:
        opened = self._source.open(name, check=False)
        odd = self._copy(opened, wanted.tensors)
        if odd is None:
            opened = self._source.open(name)
            odd = self._copy(opened, wanted.tensors)
        self._whole[name] = opened
        for tensor in odd or ():
            self._fill(tensor, opened.data, opened.start + tensor.start)
            self._progress.add(tensor.length)
        for one in wanted.objects:
            at = opened.start + one.start
            targets[one.key] = self._object(one.key, opened.data[at : at + one.length])
            self._progress.add(one.length)

    def _serve(self, part: Part) -> bytes:
        name, start, length = part
        opened = self._whole.get(name)
        if opened is None:
            opened = self._whole[name] = self._source.open(name)
        return opened.data[opened.start + start : opened.start + start + length]

    def _put(self, name: str, wanted: Wanted, found: Parts, targets: Flat) -> None:
        for tensor in wanted.tensors:
            self._fill(tensor, bytearray(found[name, tensor.start, tensor.length]), 0)
        for one in wanted.objects:
            targets[one.key] = self._object(one.key, found[name, one.start, one.length])

    def _object(self, key: str, data: bytes) -> Any:
        return safe_unpickle.value(data, key, allow_code=self._allow_code)

    def _fill(self, tensor: Piece, data: mmap.mmap | bytearray, start: int) -> None:
        stored = stored_tensor(self._metadata, tensor.which, data, start, tensor.length)
        for dimension, (first, length) in enumerate(tensor.box or ()):
            stored = stored.narrow(dimension, first, length)
        if stored.size() != tensor.target.size():
            raise ValueError(f"{tensor.which.fqn}: {list(stored.size())} stored, {list(tensor.target.size())} here")
        tensor.target.detach().copy_(stored)

    def _copy(self, opened: Opened, tensors: list[Piece]) -> list[Piece] | None:
        """Copy the tensors that lie whole in known envelopes, while the checksum is computed.

        Returns:
            The other tensors, which may be parsed now; None if the bytes, and so the copies, are damaged.
        """
        memory = memoryview(opened.data)
        total = self._beside.submit(digest_segments, memory, ((opened.start, opened.size),)) if opened.total else None
        address = ctypes.addressof(ctypes.c_char.from_buffer(opened.data))
        pieces: list[Bytes] = []
        odd: list[Piece] = []
        for tensor in tensors:
            target, start = tensor.target.detach(), opened.start + tensor.start
            around = envelope(target.shape, target.dtype)
            if tensor.box is None and is_plain(target) and _is_ours(around, opened.data, start, tensor.length):
                if around.nbytes:
                    pieces.append((target.data_ptr(), address + start + len(around.head), around.nbytes))
            else:
                odd.append(tensor)
        for some in _in_turns(pieces):
            self._copier.copy(some, beside=int(total is not None))
            self._progress.add(sum(size for *_, size in some))
        good = total is None or total.result() == opened.total
        memory.release()
        return odd if good else None

    def close(self) -> None:
        self._copier.close()
        self._beside.shutdown()


def stored_tensor(
    metadata: Metadata, index: MetadataIndex, data: mmap.mmap | bytearray, start: int, length: int
) -> torch.Tensor:
    """A part of a tensor as it was stored, in an archive of `length` bytes; a view of `data` if possible."""
    about: Any = metadata.state_dict_metadata[index.fqn]
    shape = next(chunk.sizes for chunk in about.chunks if chunk.offsets == index.offset)
    around = envelope(shape, about.properties.dtype)
    if not _is_ours(around, data, start, length):
        raw = io.BytesIO(data[start : start + length])
        loaded: torch.Tensor = torch.load(raw, map_location="cpu", weights_only=True)
        return loaded
    if not around.nbytes:
        return torch.empty(shape, dtype=about.properties.dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8, count=around.nbytes, offset=start + len(around.head))
    return flat.view(about.properties.dtype).view(shape)


def _in_turns(pieces: list[Bytes]) -> Iterator[list[Bytes]]:
    """Split into about `_TURN` bytes at a time, in order, so that progress can be reported."""
    some: list[Bytes] = []
    size = 0
    for piece in pieces:
        some.append(piece)
        size += piece[2]
        if size >= _TURN:
            yield some
            some, size = [], 0
    if some:
        yield some


def _is_ours(around: Envelope, data: mmap.mmap | bytearray, start: int, length: int) -> bool:
    """Whether the tensor's archive has exactly the bytes that we write."""
    payload = start + len(around.head)
    tail = payload + around.nbytes
    return (length, data[start:payload], data[tail : start + length]) == (around.length, around.head, around.tail)


EVERY = 1.0  # seconds between two reports: the daemon publishes about every second one


class RestoreProgress:
    """Reports how far this rank's restore is. tell: sends a message to the daemon. No collective."""

    def __init__(self, tell: Callable[[WorkPart], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told = 0.0
        self._now: PartCounter | None = None
        self._about: tuple[int, str, float] = (-1, "", 0.0)

    def of(self, step: int, place: str) -> None:
        """The step that is tried next, and its directory; "": from memory."""
        self._about, self._now = (step, place, time.time()), None

    def checking(self, total: int, whole: int) -> None:
        """This rank checks `total` bytes, all ranks together `whole`."""
        self._begin(CHECKING, total, whole)

    def loading(self, total: int) -> None:
        """This rank loads `total` bytes into the live state."""
        self._begin(LOADING, total)

    def add(self, count: int) -> None:
        if self._now is not None:
            self._now.add(count)
            if self._clock() - self._told >= EVERY:
                self._say(self._now)

    def _begin(self, what: str, total: int, whole: int = 0) -> None:
        step, place, began = self._about
        self._now = PartCounter(what, step, place, total, began, whole)
        self._say(self._now)

    def _say(self, now: PartCounter) -> None:
        self._told = self._clock()
        self._tell(now.part)
