"""The page cache operations that bench/ckpt.py needs. No torch."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def drop(folder: Path) -> None:
    """Put the files of a folder out of the page cache. Dirty pages would stay, so they are written first."""
    for path in _files(folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cached(folder: Path) -> float | None:
    """Return the share of the folder's pages that are in the page cache; None if unknown."""
    here = pages = 0
    for path in _files(folder):
        if size := path.stat().st_size:
            found = _here(path, size)
            if found is None:
                return None
            here, pages = here + found, pages - (-size // mmap.PAGESIZE)
    return here / pages if pages else None


def _here(path: Path, size: int) -> int | None:
    """mincore looks and touches nothing; a read that may not wait would make the kernel read ahead."""
    resident = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            address = ctypes.addressof(first := ctypes.c_char.from_buffer(mapped))
            failed = _libc.mincore(address, size, resident)
            del first  # or the mapping could not be closed
    except OSError:  # no mapping of this size, or on this file system
        return None
    return None if failed else sum(byte & 1 for byte in bytes(resident))


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
