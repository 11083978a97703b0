"""Buffers for snapshots, free memory, and the envelope that torch.save puts around a tensor."""

from __future__ import annotations

import fcntl
import gc
import io
import os
from pathlib import Path

import pytest
import torch

from transom_cli.ckpt.free_memory import free_memory
from transom_cli.ckpt.save import buffer
from transom_cli.ckpt.save.buffer import PAGE, Buffer
from transom_cli.ckpt.save.layout import envelope

MIB = 1 << 20
KINDS = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_buffer_is_allocated_in_full_and_cannot_be_truncated() -> None:
    before = resident()
    made = Buffer(48 * MIB + 1)
    assert (made.size == 50 * MIB and made.address % PAGE == 0) or made.size % PAGE == 0
    assert resident() - before > 45 * MIB, "its pages have been touched"
    made.write(made.size - 3, b"end")
    assert bytes(made.view(made.size - 3, 3)) == b"end" == bytes(made.bytes[-3:].tolist())
    assert os.pread(made.fd, 3, made.size - 3) == b"end", "another holder of the descriptor sees the same"
    assert fcntl.fcntl(made.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(made.fd, 0)
    descriptor = made.fd
    made.close()
    made.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_allocation_beyond_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "free_memory", lambda: buffer.SPARE + PAGE)
    Buffer(PAGE).close()
    with pytest.raises(MemoryError, match=r"a snapshot takes 4,194,304 bytes, and 2,097,152 are free"):
        Buffer(PAGE + 1)


def test_allocation_stops_if_others_take_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a node check at the same moment: each finds enough, and together they would be killed for it."""
    looks: list[int] = []

    def shrinking() -> int:
        looks.append(len(looks))
        return buffer.SPARE + 448 * MIB if len(looks) < 4 else buffer.SPARE - 1

    monkeypatch.setattr(buffer, "free_memory", shrinking)
    gc.collect()  # descriptors of earlier tests
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(MemoryError, match="others have taken them meanwhile"):
        Buffer(256 * MIB)
    assert 4 <= len(looks) <= 9, "a look before each of the 8 pieces, one after the other by some threads"
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def meminfo(proc: Path, free: int) -> None:
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {free >> 10} kB\n")


def group(path: Path, limit: str, used: int, names: tuple[str, str], stat: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / names[0]).write_text(limit + "\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(stat)


def test_free_memory_is_that_of_the_tightest_cgroup_and_counts_cache_as_free(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    meminfo(proc, 900 * MIB)
    assert free_memory(proc, groups) == 900 * MIB, "without control groups"
    (proc / "self/cgroup").write_text("0::/job_7/step_0\n")
    stat = f"anon 5\nactive_file {10 * MIB}\ninactive_file {20 * MIB}\n"
    group(groups / "job_7/step_0", "max", 300 * MIB, ("memory.max", "memory.current"), stat)
    assert free_memory(proc, groups) == 900 * MIB
    group(groups / "job_7", str(400 * MIB), 300 * MIB, ("memory.max", "memory.current"), stat)
    assert free_memory(proc, groups) == 130 * MIB
    (proc / "self/cgroup").write_text("5:cpu:/x\n4:hugetlb,memory:/uid_0/job_7\n0::/\n")
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(groups / "memory/uid_0/job_7", str(500 * MIB), 450 * MIB, old, "total_active_file 0\ntotal_inactive_file 7\n")
    assert free_memory(proc, groups) == 50 * MIB + 7


def test_free_memory_of_this_process() -> None:
    assert 0 < free_memory() < 1 << 50


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 7), (300, 11, 3)], ids=str)
def test_torch_reads_a_tensor_in_its_envelope(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    around = envelope(tensor.shape, dtype)
    payload = bytes(tensor.reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
    assert around.nbytes == len(payload)
    loaded = torch.load(io.BytesIO(around.head + payload + around.tail), weights_only=True)
    assert loaded.dtype == dtype and loaded.shape == tensor.shape
    assert not payload or loaded.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))
    written = io.BytesIO()
    torch.save(tensor, written)
    assert around.length == len(written.getvalue())
