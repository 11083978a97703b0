"""Memory copies by several threads, with libc's memcpy.

A copy through the caches first reads the lines that it overwrites, and evicts those that training needs. glibc's memcpy
has non-temporal stores, which do neither, but uses them only for pieces far larger than a tensor: its threshold follows
the last-level cache. A process cannot change that threshold for itself, so transom sets it in the environment of the
trainers that it starts (`inherited.with_streaming_copies`).
"""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

Piece = tuple[int, int, int]  # address to copy to, address to copy from, bytes

MOST_THREADS = 4  # a few cores already saturate memory bandwidth
_LEAST_SHARE = 1 << 20  # bytes: another thread pays off from here on
_GRAIN = 64  # bytes: a cache line; pieces are cut at its boundary


class Copier:
    """Copies many pieces at once. For one thread at a time."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: default: as many as this process may use, at most MOST_THREADS."""
        self.threads = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="transom-copy") if self.threads > 1 else None

    def copy(self, pieces: Sequence[Piece], *, beside: int = 0) -> None:
        """Copy all pieces, and return when every byte is there. Pieces must not overlap.

        Args:
            beside: number of other busy threads, which keep a core each if there are enough.
        """
        size = sum(piece[2] for piece in pieces)
        threads = max(1, min(self.threads, len(os.sched_getaffinity(0)) - beside))
        shares = split(pieces, min(threads, max(1, size // _LEAST_SHARE)))
        others = [self._pool.submit(_copy, share) for share in shares[1:] if self._pool]
        if shares:
            _copy(shares[0])
        for other in others:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def split(pieces: Sequence[Piece], shares: int) -> list[list[Piece]]:
    """Split the pieces into at most `shares` lists of about equal bytes; large pieces are cut."""
    each = -(-sum(piece[2] for piece in pieces) // max(1, shares))
    lists: list[list[Piece]] = [[]]
    room = each
    for to, source, size in pieces:
        while size > 0:
            if room <= 0 and len(lists) < shares:
                lists.append([])
                room = each
            taken, room = size, room - size
            if room < 0 and len(lists) < shares:  # cut at a cache line
                taken = min(size, max(_GRAIN, size + room - (to + size + room) % _GRAIN))
            lists[-1].append((to, source, taken))
            to, source, size = to + taken, source + taken, size - taken
    return [found for found in lists if found]


def _copy(pieces: Sequence[Piece]) -> None:
    for to, source, size in pieces:
        ctypes.memmove(to, source, size)  # releases the GIL
