"""Checkpoint files: checksums, fsync, writes past the page cache, and publishing by rename.

Large aligned writes bypass the page cache (O_DIRECT): no second copy in memory, and nothing that training has in the
cache is evicted. If the file system does not support that, the same bytes go through the cache. Every function raises
OSError and nothing else.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import xxhash

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.progress import OnBytes, ignore_bytes

_PIECE = 4 << 20  # bytes read at a time: large against the cost of a call, small against a cache


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def measure(path: Path, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
    """Size and checksum of a file, read in full."""
    hasher, size, piece = xxhash.xxh3_128(), 0, bytearray(_PIECE)
    view = memoryview(piece)
    with _opened(path, os.O_RDONLY) as fd:
        while got := os.readv(fd, [view]):
            hasher.update(view[:got])
            size += got
            on_bytes(got)
    return FileEntry(path.name, size, hasher.hexdigest())


def seal(path: Path, *, private: bool = True) -> FileEntry:
    """Make a finished file durable, then measure it. private: take other users' permissions from it."""
    with _opened(path, os.O_RDONLY) as fd:
        if private:
            os.fchmod(fd, 0o600)  # torch creates its files as the umask allows
        os.fsync(fd)
    return measure(path)


def sync_directory(path: Path) -> None:
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def write_new(path: Path, data: bytes) -> FileEntry:
    """Write a small file that must not exist yet, durably. Return its entry."""
    return write_pieces(path, [memoryview(data)])


def publish(work: Path, final: Path) -> None:
    """Give a finished working directory its final name. Fails if `final` exists: a checkpoint is never replaced."""
    sync_directory(work)
    if final.exists():  # rename would replace an empty directory silently
        raise FileExistsError(f"{final.name} exists already")
    work.rename(final)
    sync_directory(final.parent)


def set_aside(checkpoint: Path, why: str = "bad") -> Path:
    """Move a checkpoint out of the way, to `<name>.<why>-<k>` with the first free k. Nothing is deleted."""
    k = 1
    while (aside := checkpoint.with_name(f"{checkpoint.name}.{why}-{k}")).exists():
        k += 1
    checkpoint.rename(aside)
    sync_directory(checkpoint.parent)
    return aside


def delete_tree(path: Path) -> None:
    """Remove a working directory as far as possible. The next attempt cleans up the rest."""
    shutil.rmtree(path, ignore_errors=True)


_WRITE_PIECE = 8 << 20  # bytes written by one call
_BLOCK = mmap.PAGESIZE  # O_DIRECT needs addresses, offsets and lengths that are multiples of this, at most


def write_segments(
    path: Path, memory: memoryview, segments: Sequence[tuple[int, int]], on_bytes: OnBytes = ignore_bytes
) -> FileEntry:
    """Write segments of `memory`, (start, bytes), one after the other into a new file, durably. Return its entry.

    If there is one segment and it begins on a page, the memory must reach to the end of the segment's last page.
    """
    size = sum(length for _, length in segments)
    with ThreadPoolExecutor(1, thread_name_prefix="transom-sum") as beside:
        total = beside.submit(digest_segments, memory, segments)
        try:
            if len(segments) != 1 or segments[0][0] % _BLOCK or not _write_direct(path, memory, *segments[0], on_bytes):
                _write_cached(path, (memory[start : start + length] for start, length in segments), on_bytes)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        return FileEntry(path.name, size, total.result())


def _write_direct(path: Path, memory: memoryview, start: int, size: int, on_bytes: OnBytes) -> bool:
    """Returns False, and leaves no file, if the file system does not support it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno == errno.EINVAL:
            path.unlink(missing_ok=True)  # some create the file and then refuse
            return False
        raise
    try:
        whole = -(-size // _BLOCK) * _BLOCK
        try:
            _write(fd, memory[start : start + whole], on_bytes)
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


def write_pieces(path: Path, pieces: Iterable[memoryview | bytes], on_bytes: OnBytes = ignore_bytes) -> FileEntry:
    """Write pieces one after the other into a new file, durably, through the page cache. Return its entry."""
    hasher, size = xxhash.xxh3_128(), 0

    def counted() -> Iterator[memoryview | bytes]:
        nonlocal size
        for piece in pieces:
            hasher.update(piece)
            size += len(piece)
            yield piece

    _write_cached(path, counted(), on_bytes)
    return FileEntry(path.name, size, hasher.hexdigest())


def _write_cached(path: Path, pieces: Iterable[memoryview | bytes], on_bytes: OnBytes) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        for piece in pieces:
            _write(fd, piece, on_bytes)
        os.fsync(fd)


def _write(fd: int, data: memoryview | bytes, on_bytes: OnBytes) -> None:
    done = 0
    while done < len(data):
        count = os.write(fd, data[done : done + _WRITE_PIECE])
        done += count
        on_bytes(count)


def digest_segments(memory: memoryview, segments: Sequence[tuple[int, int]]) -> str:
    """The xxh3_128 of segments of `memory`, (start, bytes), one after the other."""
    hasher = xxhash.xxh3_128()
    for start, length in segments:
        for at in range(start, start + length, _WRITE_PIECE):
            hasher.update(memory[at : min(at + _WRITE_PIECE, start + length)])
    return hasher.hexdigest()
