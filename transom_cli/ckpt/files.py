"""Bytes on disk: checksums, fsync, and publishing by rename. Every function raises OSError and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.underway import Told, nobody

_PIECE = 4 << 20  # bytes read at a time: well above the cost of a call, well below a cache


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _digest(fd: int, told: Told = nobody) -> tuple[int, str]:
    hasher, size, piece = xxhash.xxh3_128(), 0, bytearray(_PIECE)
    view = memoryview(piece)
    while got := os.readv(fd, [view]):
        hasher.update(view[:got])
        size += got
        told(got)
    return size, hasher.hexdigest()


def measure(path: Path, told: Told = nobody) -> FileEntry:
    """Size and checksum of a file, read in full."""
    with _opened(path, os.O_RDONLY) as fd:
        size, digest = _digest(fd, told)
    return FileEntry(path.name, size, digest)


def seal(path: Path, told: Told = nobody) -> FileEntry:
    """Make a finished file durable, then measure it.

    DCP's own `sync_files` is not enough: it fsyncs `.metadata` before Python's buffer of it is flushed.
    """
    with _opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)
        size, digest = _digest(fd, told)
    return FileEntry(path.name, size, digest)


def sync_directory(path: Path) -> None:
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, durably."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)


def publish(work: Path, final: Path) -> None:
    """Give a finished working directory its final name. Fails when `final` exists: a checkpoint is never replaced."""
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
    """Remove a working directory, as far as that is possible: a leftover is cleaned up by the next attempt."""
    shutil.rmtree(path, ignore_errors=True)
