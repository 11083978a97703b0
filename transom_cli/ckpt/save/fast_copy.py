"""Memory copies at full bandwidth: several threads, and stores that bypass the caches.

A copy through the caches first reads the lines that it overwrites, and evicts those that training needs. A non-temporal
store does neither, and memory bandwidth is what a snapshot costs: 17.9 against 12.8 GB/s with two threads where this
was written. glibc uses such stores too, but only for pieces far larger than a tensor (its threshold follows the
last-level cache). No common library offers such a copy, so this one is a few lines of LLVM assembly, compiled for this
processor by llvmlite when first needed. Without llvmlite, libc's memcpy does the work.
"""

from __future__ import annotations

import array
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Piece = tuple[int, int, int]  # address to copy to, address to copy from, bytes
CopyTable = Callable[[int, int], object]  # address of a table with rows of three 64-bit words, number of rows

COMPILE_FROM = 64 << 20  # bytes: compiling pays off from here on
MOST_THREADS = 4  # a few cores already saturate memory bandwidth
_LEAST_SHARE = 1 << 20  # bytes: another thread pays off from here on
_GRAIN = 64  # bytes: a cache line; pieces are cut at its boundary

_LLVM = r"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @copy_table(ptr %rows, i64 %count) nounwind {
entry:
  %some = icmp ne i64 %count, 0
  br i1 %some, label %row, label %out
row:
  %i = phi i64 [0, %entry], [%i.next, %row.end]
  %i3 = mul i64 %i, 3
  %p.to = getelementptr i64, ptr %rows, i64 %i3
  %p.from = getelementptr i64, ptr %p.to, i64 1
  %p.size = getelementptr i64, ptr %p.to, i64 2
  %to.int = load i64, ptr %p.to
  %from.int = load i64, ptr %p.from
  %size = load i64, ptr %p.size
  %to = inttoptr i64 %to.int to ptr
  %from = inttoptr i64 %from.int to ptr
  %small = icmp ult i64 %size, 2048
  br i1 %small, label %plain, label %aligned
plain:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  br label %row.end
aligned:
  %negative = sub i64 0, %to.int
  %head = and i64 %negative, 63
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %head, i1 false)
  %rest = sub i64 %size, %head
  %body = and i64 %rest, -128
  %to.body = getelementptr i8, ptr %to, i64 %head
  %from.body = getelementptr i8, ptr %from, i64 %head
  br label %lines
lines:
  %at = phi i64 [0, %aligned], [%at.next, %lines]
  %to.0 = getelementptr i8, ptr %to.body, i64 %at
  %to.1 = getelementptr i8, ptr %to.0, i64 64
  %from.0 = getelementptr i8, ptr %from.body, i64 %at
  %from.1 = getelementptr i8, ptr %from.0, i64 64
  %line.0 = load <16 x i32>, ptr %from.0, align 1
  %line.1 = load <16 x i32>, ptr %from.1, align 1
  store <16 x i32> %line.0, ptr %to.0, align 64, !nontemporal !0
  store <16 x i32> %line.1, ptr %to.1, align 64, !nontemporal !0
  %at.next = add i64 %at, 128
  %more.lines = icmp ult i64 %at.next, %body
  br i1 %more.lines, label %lines, label %tail
tail:
  %left = sub i64 %rest, %body
  %to.tail = getelementptr i8, ptr %to.body, i64 %body
  %from.tail = getelementptr i8, ptr %from.body, i64 %body
  call void @llvm.memcpy.p0.p0.i64(ptr %to.tail, ptr %from.tail, i64 %left, i1 false)
  br label %row.end
row.end:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %count
  br i1 %more, label %row, label %out
out:
  fence seq_cst
  ret void
}

!0 = !{i32 1}
"""


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
        table = _compiled or _by_libc
        threads = max(1, min(self.threads, len(os.sched_getaffinity(0)) - beside))
        shares = split(pieces, min(threads, max(1, size // _LEAST_SHARE)))
        rows = [array.array("Q", [word for piece in share for word in piece]) for share in shares]
        others = [self._pool.submit(table, *row.buffer_info()[:1], len(row) // 3) for row in rows[1:] if self._pool]
        if rows:
            table(rows[0].buffer_info()[0], len(rows[0]) // 3)
        for other in others:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def copy_rows(rows: array.array[int]) -> None:
    """Copy small pieces at once, in this thread: address to copy to, address to copy from, bytes, and so on."""
    if rows:
        (_compiled or _by_libc)(rows.buffer_info()[0], len(rows) // 3)


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


_lock = threading.Lock()
_compiled: CopyTable | None = None
_tried = False
_engine: object = None  # owns the code that _compiled points to


def compiled_copy() -> CopyTable | None:
    """Return the compiled copy, or None if llvmlite is missing or may not generate code here.

    The first call takes a few tenths of a second. Call it ahead of a large copy, beside other work.
    """
    global _compiled, _tried, _engine
    with _lock:
        if not _tried:
            _tried = True
            try:
                _engine, _compiled = _compile()
            except Exception:  # no llvmlite, no executable memory, or an unknown processor: memcpy works too
                _compiled = None
    return _compiled


def _compile() -> tuple[object, CopyTable]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_LLVM)
    module.verify()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple().create_target_machine(llvm.get_host_cpu_name(), features, opt=2)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)  # the call releases the GIL
    return engine, kind(engine.get_function_address("copy_table"))


def _by_libc(address: int, count: int) -> None:
    rows = (ctypes.c_uint64 * (3 * count)).from_address(address)
    for row in range(0, 3 * count, 3):
        ctypes.memmove(rows[row], rows[row + 1], rows[row + 2])
