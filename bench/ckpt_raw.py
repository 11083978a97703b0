"""The lower bound of this machine as a method of bench/ckpt.py: in the same harness and the same minutes.

save() is only the copy into shared memory that was touched before. Then another process writes that memory
with O_DIRECT and fsync. There are no checksums, no record and no second rank to agree with, so a damaged or incomplete
file would not be detected.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist
from ckpt_methods import Method, Place
from ckpt_state import State
from harness import BenchError

from transom_cli.ckpt.names import parse_step
from transom_cli.ckpt.save.fast_copy import Copier

_PIECE = 8 << 20
_ALIGNED = 64
_WRITER = f"""
import mmap, os, sys
fd, size = int(sys.argv[1]), int(sys.argv[2])
view = memoryview(mmap.mmap(fd, size))
view[::{mmap.PAGESIZE}].tobytes()  # in this process's page table
print("ready", flush=True)
for line in sys.stdin:
    path = line.rstrip()
    out = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    at = 0
    while at < size:
        at += os.write(out, view[at : at + {_PIECE}])
    os.fsync(out)
    os.close(out)
    os.rename(path + ".tmp", path)
    print("written", flush=True)
"""


class Machine(Method):
    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        self._copier, self._writing = Copier(), False
        self._places: list[tuple[int, int, int]] = []  # where a tensor is, where it goes, bytes
        end = 0
        for tensor in state.local.values():
            size = tensor.numel() * tensor.element_size()
            self._places.append((tensor.data_ptr(), end, size))
            end += -(-size // _ALIGNED) * _ALIGNED
        self._size = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fd = os.memfd_create("transom-bench")
        os.ftruncate(self._fd, self._size)
        self._memory = mmap.mmap(self._fd, self._size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._address = _address(self._memory)
        self._child = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(self._fd), str(self._size)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[self._fd],
        )  # fmt: skip
        self._heard()

    def save(self, step: int) -> None:
        self._copier.copy([(self._address + at, origin, size) for origin, at, size in self._places])
        if self.place.own_file:
            self.path(step).mkdir(parents=True, exist_ok=True)
            assert self._child.stdin is not None
            self._child.stdin.write(f"{self._file(step)}\n")
            self._child.stdin.flush()
            self._writing = True

    def done(self) -> bool:
        return not self._writing or bool(select.select([self._child.stdout], [], [], 0.0)[0])

    def finish(self) -> None:
        if self._writing:
            self._writing = False
            self._heard()
        dist.barrier()

    def steps(self) -> list[int]:
        named = {parse_step(path.name): path for path in self.place.folder.glob("step-*")}
        whole = [n for n, path in named.items() if n is not None and len(list(path.glob("*.raw"))) == self.place.files]
        return sorted(whole, reverse=True)

    def load(self, step: int) -> None:
        with self._file(step).open("rb") as file:
            data = mmap.mmap(file.fileno(), self._size, flags=mmap.MAP_PRIVATE)  # faulted in as it is read
            self._copier.copy([(origin, _address(data) + at, size) for origin, at, size in self._places])

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()
        self._copier.close()

    def _file(self, step: int) -> Path:
        return self.path(step) / f"rank-{self.place.file_rank}.raw"

    def _heard(self) -> None:
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            raise BenchError("The writer has ended", f"with status {self._child.wait()}")


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
