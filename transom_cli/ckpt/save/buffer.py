"""Memory for snapshots: pre-faulted, on huge pages if the kernel gives them, in an anonymous file.

The first touch of a page costs ten times the copy into it (0.9 against 8.3 GB/s on 4 KiB pages where this was written),
so the cost is paid at allocation. A memfd can be passed to another process, is charged to the process that touched it,
and is freed with its last holder: a job leaves nothing behind on its node.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import torch

from transom_cli.ckpt.free_memory import SPARE, free_memory
from transom_cli.ckpt.save.fast_copy import MOST_THREADS

PAGE = 2 << 20  # bytes: a huge page; sizes are multiples of it

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # MADV_POPULATE_.., Linux 5.14 and later
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process
_STRIDE = 32 << 20  # bytes populated in one call; checking the free memory costs a tenth of that

_libc = ctypes.CDLL(None, use_errno=True)  # ctypes calls release the GIL; those of the mmap module do not
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Buffer:
    """`size` bytes of shared memory at `address`. about: the layout whose envelopes are written in it."""

    def __init__(self, size: int, *, hurry: bool = False) -> None:
        """Allocate and touch the memory.

        Args:
            size: bytes; rounded up to huge pages.
            hurry: use several cores, because the trainer waits; otherwise one.

        Raises:
            MemoryError: there is not enough. Nothing stays allocated.
        """
        self.size = -(-max(size, 1) // PAGE) * PAGE
        free = free_memory()
        if self.size + SPARE > free:
            raise MemoryError(f"a snapshot takes {self.size:,} bytes, and {max(0, free - SPARE):,} are free for it")
        self.fd = os.memfd_create("transom-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._open()
        except OSError:
            os.close(self.fd)
            raise
        self._touch(MOST_THREADS if hurry else 1)

    @classmethod
    def lent(cls, fd: int, size: int) -> Buffer:
        """Map memory that another process has allocated and touched. Takes over the descriptor. Raises OSError."""
        self = cls.__new__(cls)
        self.fd, self.size = fd, size
        self._open()
        return self

    def _open(self) -> None:
        self._pinned = False
        self.map = mmap.mmap(self.fd, self.size)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.address: int = self.bytes.data_ptr()
        self.about: object = None

    def enter(self) -> None:
        """Map all pages of lent memory at once. Faulting in a GiB of small pages takes longer than the copy into it.

        Older kernels do not support this.
        """
        _libc.madvise(self.address, self.size, _POPULATE_READ)

    def holds(self, fd: int) -> bool:
        """Whether the descriptor refers to this memory."""
        mine, other = os.fstat(self.fd), os.fstat(fd)
        return (mine.st_dev, mine.st_ino) == (other.st_dev, other.st_ino)

    def view(self, start: int, size: int) -> memoryview:
        return memoryview(self.map)[start : start + size]

    def write(self, start: int, data: bytes) -> None:
        self.map[start : start + len(data)] = data

    def pin(self) -> None:
        """Pin the memory, so that the GPU copies into it directly. Not tested on hardware."""
        if not self._pinned and torch.cuda.is_initialized():
            self._pinned = True
            with contextlib.suppress(Exception):
                torch.cuda.cudart().cudaHostRegister(self.address, self.size, _PORTABLE)

    def close(self) -> None:
        """Close the descriptor. The memory is freed when the last view of it is gone."""
        if self._pinned:
            with contextlib.suppress(Exception):
                torch.cuda.cudart().cudaHostUnregister(self.address)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _touch(self, most: int) -> None:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self.map.madvise(mmap.MADV_HUGEPAGE)
        starts = range(0, self.size, _STRIDE)
        threads = min(most, len(os.sched_getaffinity(0)), len(starts))
        with ThreadPoolExecutor(threads, thread_name_prefix="transom-touch") as pool:
            parts = [pool.submit(self._touch_part, start) for start in starts]
            wait(parts, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        troubles = [str(part.exception()) for part in parts if not part.cancelled() and part.exception()]
        if troubles:
            self.close()
            raise MemoryError(troubles[0])

    def _touch_part(self, start: int) -> None:
        length = min(_STRIDE, self.size - start)
        if free_memory() < SPARE:  # all ranks of a node saw the same free memory, and take it at the same time
            raise MemoryError(f"a snapshot takes {self.size:,} bytes, and others have taken them meanwhile")
        if _libc.madvise(self.address + start, length, _POPULATE_WRITE) == 0:
            return
        if ctypes.get_errno() != errno.EINVAL:  # out of memory after all
            raise MemoryError(f"a snapshot takes {self.size:,} bytes: {os.strerror(ctypes.get_errno())}")
        ctypes.memset(self.address + start, 0, length)  # an older kernel
