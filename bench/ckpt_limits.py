"""Measure this machine's limits for bench/ckpt.py, with as many bytes: GB (10^9 bytes) per second. No torch.

    python bench/ckpt_limits.py BYTES FOLDER        one JSON object on stdout

A limit that cannot be measured here is a text with the reason. `tensors`: the tensors of the state, in memory that was
touched before, copied into one arena by libc's memcpy. With the GLIBC_TUNABLES of transom's ranks, that is the lower
bound of a blocking save and of a load from memory.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import xxhash
from ckpt_pages import drop
from ckpt_plan import plan

PIECE = 8 << 20  # bytes of a disk request
REPEATS = 3
_pool = ThreadPoolExecutor(1)  # for the second of two threads
Limits = dict[str, "float | str"]
Row = tuple[int, int, int]  # to, from, bytes


def measure(size: int, folder: Path) -> Limits:
    found: Limits = {}
    sizes = [item.size for item in plan(size)]
    size = sum(sizes)
    source, target = _touched(size), _touched(size)
    tensors = _rows(target, source, sizes)
    both = min(2, len(os.sched_getaffinity(0)))
    for threads in sorted({1, both}):
        of = f"{threads} thread{'s' if threads > 1 else ''}"
        whole = _cut(_rows(target, source, [size]), threads)
        _put(found, f"memcpy, {of}", size, partial(_side_by_side, _memcpy, whole))
        shares = _cut(tensors, threads)
        _put(found, f"tensors, memcpy, {of}", size, partial(_side_by_side, _memcpy, shares))
        pieces = [memoryview(source)[k * size // threads : (k + 1) * size // threads] for k in range(threads)]
        _put(found, f"xxh3_64, {of}", size, partial(_side_by_side, xxhash.xxh3_64_digest, pieces))
    _put(found, "shared memory, first touch", size, lambda: _first_touch(source, huge=False))
    _put(found, "shared memory, first touch, huge pages", size, lambda: _first_touch(source, huge=True))
    _disk(found, source, folder / "limits", size)
    return found


def _put(found: Limits, name: str, size: int, act: Callable[[], object] | str) -> None:
    """The median of the repeats, after one that is not counted."""
    if isinstance(act, str):
        found[name] = act
        return
    try:
        times = [_seconds(act) for _ in range(REPEATS + 1)][1:]
        found[name] = size / statistics.median(times) / 1e9
    except OSError as error:
        found[name] = error.strerror or str(error)


def _seconds(act: Callable[[], object]) -> float:
    """An act that knows better which part of it counts returns its own seconds."""
    began = time.perf_counter()
    own = act()
    return own if isinstance(own, float) else time.perf_counter() - began


def _touched(size: int) -> mmap.mmap:
    """Anonymous memory, on huge pages where the kernel gives them, with something in each page."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    block = os.urandom(1 << 20)
    for at in range(0, size, len(block)):
        memory[at : at + len(block)] = block[: size - at]
    return memory


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _rows(target: mmap.mmap, source: mmap.mmap, sizes: Sequence[int]) -> list[Row]:
    to, origin, rows, at = _address(target), _address(source), [], 0
    for size in sizes:
        rows.append((to + at, origin + at, size))
        at += size
    return rows


def _cut(rows: Sequence[Row], shares: int) -> list[list[Row]]:
    """As many lists, of about as many bytes; each row in one piece a share."""
    if len(rows) == 1:
        to, origin, size = rows[0]
        edges = [k * size // shares for k in range(shares + 1)]
        return [[(to + a, origin + a, b - a)] for a, b in pairwise(edges)]
    lists: list[list[Row]] = [[] for _ in range(shares)]
    held = [0] * shares
    for row in sorted(rows, key=lambda row: row[2], reverse=True):
        least = held.index(min(held))
        lists[least].append(row)
        held[least] += row[2]
    return lists


def _memcpy(rows: Sequence[Row]) -> None:
    for to, origin, size in rows:
        ctypes.memmove(to, origin, size)  # lets the GIL go


def _side_by_side(act: Callable[..., object], parts: Sequence[object]) -> None:
    others = [_pool.submit(act, part) for part in parts[1:]]
    act(parts[0])
    for other in others:
        other.result()


def _first_touch(source: mmap.mmap, huge: bool) -> float:
    """Copy into shared memory that nobody has touched; giving it back is not counted."""
    fd = os.memfd_create("transom-bench", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, len(source))
        with mmap.mmap(fd, len(source)) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
            began = time.perf_counter()
            memory[:] = memoryview(source)
            return time.perf_counter() - began
    finally:
        os.close(fd)


def _disk(found: Limits, source: mmap.mmap, folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sequential"
    try:
        _put(found, "disk write", size, lambda: _write(path, source, size))
        if isinstance(found["disk write"], str):
            path.write_bytes(memoryview(source)[:size])
        buffer = mmap.mmap(-1, PIECE)
        _put(found, "disk read, cold", size, lambda: _read_cold(path, folder, buffer))
        _put(found, "disk read, warm", size, lambda: _read(path, os.O_RDONLY, buffer))
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, source: mmap.mmap, size: int) -> None:
    """O_DIRECT in large pieces, then fdatasync; whole blocks, so at most 4095 bytes less than `size`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    end, view = size & ~4095, memoryview(source)
    try:
        for at in range(0, end, PIECE):
            os.write(fd, view[at : min(at + PIECE, end)])
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _read_cold(path: Path, folder: Path, buffer: mmap.mmap) -> float:
    drop(folder)
    began = time.perf_counter()
    _read(path, os.O_RDONLY | os.O_DIRECT, buffer)
    return time.perf_counter() - began


def _read(path: Path, flags: int, buffer: mmap.mmap) -> None:
    fd = os.open(path, flags)
    try:
        while os.readv(fd, [buffer]):
            pass
    finally:
        os.close(fd)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]))))
