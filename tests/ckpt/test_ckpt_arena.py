"""The memory of snapshots, what there is room for, and what torch.save puts around a tensor."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path

import pytest
import torch

from transom_cli.ckpt.room import room
from transom_cli.ckpt.save import arena
from transom_cli.ckpt.save.arena import PAGE, Arena
from transom_cli.ckpt.save.envelope import envelope

MIB = 1 << 20
KINDS = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_arena_is_there_in_full_from_the_start_and_cannot_be_cut() -> None:
    before = resident()
    made = Arena(48 * MIB + 1)
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


def test_memory_that_is_not_there_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "room", lambda: arena.SPARE + PAGE)
    Arena(PAGE).close()
    with pytest.raises(MemoryError, match=r"a snapshot takes 4,194,304 bytes, and 2,097,152 are free"):
        Arena(PAGE + 1)


def test_memory_that_others_take_meanwhile_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a node look at the same moment: each finds room, and together they would be killed for it."""
    looks: list[int] = []

    def shrinking() -> int:
        looks.append(len(looks))
        return 512 * MIB if len(looks) < 4 else arena.SPARE - 1

    monkeypatch.setattr(arena, "room", shrinking)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(MemoryError, match="others have taken them meanwhile"):
        Arena(256 * MIB)
    assert 4 <= len(looks) <= 9, "a look before each of the 8 pieces, one after the other by some threads"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def meminfo(proc: Path, free: int) -> None:
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {free >> 10} kB\n")


def group(path: Path, limit: str, used: int, names: tuple[str, str], stat: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / names[0]).write_text(limit + "\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(stat)


def test_room_is_that_of_the_tightest_group_and_counts_cache_as_free(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    meminfo(proc, 900 * MIB)
    assert room(proc, groups) == 900 * MIB, "without control groups"
    (proc / "self/cgroup").write_text("0::/job_7/step_0\n")
    stat = f"anon 5\nactive_file {10 * MIB}\ninactive_file {20 * MIB}\n"
    group(groups / "job_7/step_0", "max", 300 * MIB, ("memory.max", "memory.current"), stat)
    assert room(proc, groups) == 900 * MIB
    group(groups / "job_7", str(400 * MIB), 300 * MIB, ("memory.max", "memory.current"), stat)
    assert room(proc, groups) == 130 * MIB
    (proc / "self/cgroup").write_text("5:cpu:/x\n4:hugetlb,memory:/uid_0/job_7\n0::/\n")
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(groups / "memory/uid_0/job_7", str(500 * MIB), 450 * MIB, old, "total_active_file 0\ntotal_inactive_file 7\n")
    assert room(proc, groups) == 50 * MIB + 7


def test_room_of_this_very_process() -> None:
    assert 0 < room() < 1 << 50


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 7), (300, 11, 3)], ids=str)
def test_torch_reads_what_stands_in_its_envelope(shape: tuple[int, ...], dtype: torch.dtype) -> None:
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
