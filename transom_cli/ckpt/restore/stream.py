"""Read a data file once: bytes go to the tensors while the file's checksum is computed.

Several threads read large pieces past the page cache (O_DIRECT), so several requests are under way. Each thread copies
its piece to where it belongs. The checksum takes the pieces in order. Until `read` returns, what was copied is not
verified: nothing of it may be parsed, and the load fails as a whole if the checksum differs.

A file that is in the page cache already is read from there. So is a file that several ranks want: they share the cache.
"""

import bisect
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import xxhash

from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.progress import OnBytes

_PIECE = 8 << 20  # bytes of a request
_STREAMS = 4  # requests under way
_CACHED = 0.9  # part of a file's pages; with less in the page cache, the disk is read


class Sink(Protocol):
    """Takes the bytes of a segment, in pieces of any order, from several threads."""

    def put(self, at: int, origin: int, length: int) -> None:
        """Take `length` bytes from address `origin`; they begin `at` bytes after the start of the segment."""
        ...


class Segment(NamedTuple):
    start: int
    length: int
    sink: Sink


class InPlace:
    """Into memory that exists, at an address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def put(self, at: int, origin: int, length: int) -> None:
        ctypes.memmove(self._address + at, origin, length)


class Kept(InPlace):
    """Keep the bytes, for a look at them when they are verified."""

    def __init__(self, length: int) -> None:
        self.data = bytearray(length)
        super().__init__(ctypes.addressof(ctypes.c_char.from_buffer(self.data)) if length else 0)


class Staged:
    """A tensor that cannot be written by address, as on a GPU: its bytes are collected, then copied by torch."""

    def __init__(self, target: torch.Tensor, length: int) -> None:
        self._target, self._length, self._missing = target, length, length
        self._lock = threading.Lock()
        self._bytes: torch.Tensor | None = None

    def put(self, at: int, origin: int, length: int) -> None:
        with self._lock:
            if self._bytes is None:
                self._bytes = torch.empty(self._length, dtype=torch.uint8)
        ctypes.memmove(self._bytes.data_ptr() + at, origin, length)
        with self._lock:
            self._missing -= length
            if self._missing:
                return
        with torch.no_grad():
            self._target.copy_(self._bytes.view(self._target.dtype).view(self._target.shape))
        self._bytes = None


def read(path: Path, entry: FileEntry, segments: Sequence[Segment], on_bytes: OnBytes, *, shared: bool) -> None:
    """Read a file in full, and verify it.

    Args:
        segments: where bytes go; they do not overlap.
        shared: other ranks read the file too, so use the page cache.

    Raises:
        BadFile: the file differs from its entry.
        OSError: it cannot be read.
    """
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise BadFile(f"{entry.name} has {size} bytes, not {entry.size}")
        total = _Reader(path, size, segments, on_bytes, direct=not shared and not _in_cache(path, size)).read()
    except OSError as error:
        raise OSError(error.errno, f"{entry.name} cannot be read ({error.strerror or error})") from None
    if total != entry.xxh3_128:
        raise BadFile(f"{entry.name} is damaged (its checksum differs)")


class _Reader:
    def __init__(
        self, path: Path, size: int, segments: Sequence[Segment], on_bytes: OnBytes, *, direct: bool
    ) -> None:  # fmt: skip
        self._path, self._size, self._direct, self._on_bytes = path, size, direct, on_bytes
        self._segments = sorted(segments, key=lambda one: one.start)
        self._ends = [one.start + one.length for one in self._segments]
        self._hasher = xxhash.xxh3_128()
        self._next = 0  # of the piece that is to be read
        self._turn = 0  # of the piece that is to be hashed
        self._failed: BaseException | None = None
        self._changed = threading.Condition()

    def read(self) -> str:
        fd = self._open()
        try:
            pieces = -(-self._size // _PIECE)
            count = min(_STREAMS, pieces) - 1
            others = [threading.Thread(target=self._work, args=(fd,), name="transom-read") for _ in range(count)]
            for other in others:
                other.start()
            self._work(fd)
            for other in others:
                other.join()
        finally:
            os.close(fd)
        if self._failed is not None:
            raise self._failed
        return self._hasher.hexdigest()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self._direct else 0))
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
        self._direct = False
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def _work(self, fd: int) -> None:
        piece = mmap.mmap(-1, _PIECE)  # begins at a page, as O_DIRECT needs it
        address = ctypes.addressof(anchor := ctypes.c_char.from_buffer(piece))
        try:
            with memoryview(piece) as view:
                while (start := self._take()) is not None:
                    length = min(_PIECE, self._size - start)
                    self._fill(fd, view, start, length)
                    self._copy(address, start, length)
                    self._hash(view[:length], start)
        except BaseException as error:
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
        finally:
            del anchor
            piece.close()

    def _take(self) -> int | None:
        with self._changed:
            start = self._next
            if start >= self._size or self._failed is not None:
                return None
            self._next += _PIECE
            return start

    def _fill(self, fd: int, view: memoryview, start: int, length: int) -> None:
        done = 0
        while done < length:
            got = os.preadv(fd, [view[done:]], start + done)
            if got <= 0:
                raise OSError(errno.EIO, "it became shorter")
            done += got

    def _copy(self, address: int, start: int, length: int) -> None:
        end = start + length
        for index in range(bisect.bisect_right(self._ends, start), len(self._segments)):
            first, size, sink = self._segments[index]
            if first >= end:
                break
            begin, stop = max(first, start), min(first + size, end)
            if begin < stop:
                sink.put(begin - first, address + begin - start, stop - begin)

    def _hash(self, data: memoryview, start: int) -> None:
        """Add a piece to the checksum when it is its turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == start or self._failed is not None)
            if self._failed is not None:
                return
        self._hasher.update(data)
        self._on_bytes(len(data))
        with self._changed:
            self._turn = start + _PIECE
            self._changed.notify_all()


_libc = ctypes.CDLL(None, use_errno=True)


def _in_cache(path: Path, size: int) -> bool:
    """Whether nearly all of a file is in the page cache."""
    resident = (ctypes.c_ubyte * max(1, -(-size // mmap.PAGESIZE)))()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            address = ctypes.addressof(anchor := ctypes.c_char.from_buffer(mapped))
            failed = _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), resident)
            del anchor
    except (OSError, ValueError):  # no mapping of this file
        return False
    return not failed and bytes(resident).count(1) >= _CACHED * len(resident)
