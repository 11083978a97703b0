"""Memory to a file at the disk's own speed, with its checksum made on the way.

Large, aligned pieces go past the page cache (O_DIRECT): no second copy in memory, and nothing that the training has in
the cache is driven out. Where a file system does not take that, the same bytes go through the cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.underway import Told, nobody

_PIECE = 8 << 20  # bytes written by one call
_BLOCK = mmap.PAGESIZE  # what O_DIRECT wants addresses, offsets and lengths to be multiples of, at most


def write(path: Path, memory: memoryview, segments: Sequence[tuple[int, int]], told: Told = nobody) -> FileEntry:
    """Write these (start, bytes) of `memory` one after the other into a new file, durably. Raises OSError.

    Where there is one segment that begins on a page, what follows it in memory must reach to the end of its last page.
    """
    size = sum(length for _, length in segments)
    with ThreadPoolExecutor(1, thread_name_prefix="transom-sum") as beside:
        total = beside.submit(digest, memory, segments)
        try:
            if len(segments) != 1 or segments[0][0] % _BLOCK or not _write_direct(path, memory, *segments[0], told):
                _write_cached(path, memory, segments, told)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        return FileEntry(path.name, size, total.result())


def _write_direct(path: Path, memory: memoryview, start: int, size: int, told: Told) -> bool:
    """False where the file system cannot; there is no such file then."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno == errno.EINVAL:
            path.unlink(missing_ok=True)  # some make it and then refuse
            return False
        raise
    try:
        whole = -(-size // _BLOCK) * _BLOCK
        try:
            _write(fd, memory[start : start + whole], told)
        except OSError as error:
            if error.errno == errno.EINVAL:
                path.unlink()
                return False
            raise
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _write_cached(path: Path, memory: memoryview, segments: Sequence[tuple[int, int]], told: Told) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for start, length in segments:
            _write(fd, memory[start : start + length], told)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: memoryview, told: Told) -> None:
    done = 0
    while done < len(data):
        count = os.write(fd, data[done : done + _PIECE])
        done += count
        told(count)


def digest(memory: memoryview, segments: Sequence[tuple[int, int]]) -> str:
    """The xxh3_128 of these (start, bytes) of `memory`, one after the other."""
    hasher = xxhash.xxh3_128()
    for start, length in segments:
        for at in range(start, start + length, _PIECE):
            hasher.update(memory[at : min(at + _PIECE, start + length)])
    return hasher.hexdigest()
