"""A restore from disk reads each byte once, verifies it on the way, and parses nothing that is not verified."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_made import flip

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.convert.importer import import_file
from transom_cli.ckpt.failures import BadFile, NoCheckpointRestores
from transom_cli.ckpt.files import measure
from transom_cli.ckpt.restore import disk, stream
from transom_cli.ckpt.restore.stream import InPlace, Kept, Segment, Staged

SIZE = 3 * (8 << 20) + 4097  # four pieces, and an end that O_DIRECT cannot ask for


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("where", ["disk", "memory"])  # a file system in memory has no O_DIRECT
def test_segments_get_their_bytes_and_the_checksum_is_that_of_the_file(tmp_path: Path, where: str, shared: bool):
    path = tmp_path / "__0_0.distcp" if where == "disk" else Path(f"/dev/shm/transom-test-{os.getpid()}")
    data = os.urandom(1 << 16) * (SIZE >> 16) + os.urandom(SIZE & 0xFFFF)
    try:
        path.write_bytes(data)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        entry = measure(path)
        there = bytearray(12 << 20)
        target = torch.zeros(2000, 1000, dtype=torch.int32).t()
        head, end = Kept(100), Kept(5000)
        segments = [
            Segment(SIZE - 5000, 5000, end),
            Segment(3, 100, head),
            Segment(103, len(there), InPlace(ctypes.addressof(ctypes.c_char.from_buffer(there)))),
            Segment(13 << 20, 8_000_000, Staged(target, 8_000_000)),
        ]
        counted: list[int] = []
        stream.read(path, entry, segments, counted.append, shared=shared)
        assert sum(counted) == SIZE
        assert (head.data, end.data, there) == (data[3:103], data[-5000:], data[103 : 103 + len(there)])
        assert target.contiguous().numpy().tobytes() == data[13 << 20 :][:8_000_000]
        flip(path, SIZE - 1)
        with pytest.raises(BadFile, match="its checksum differs"):
            stream.read(path, entry, [], counted.append, shared=shared)
    finally:
        path.unlink(missing_ok=True)


def saved(directory: Path, steps: int = 1) -> dict[str, Any]:
    state = {"w": torch.zeros(300, 700), "odd": torch.zeros(40, 30).t(), "note": ""}
    ck = Checkpointer(state, directory, every=1, keep=9)
    for step in range(1, steps + 1):
        state["w"].fill_(step)
        state["odd"].fill_(-step)
        state["note"] = f"step {step}"
        ck.save(step)
    ck.close(strict=True)
    return state


def fresh() -> dict[str, Any]:
    return {"w": torch.zeros(300, 700), "odd": torch.zeros(40, 30).t(), "note": "none"}


def test_files_are_read_once_and_not_checked_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path / "c")
    read: list[str] = []
    real = stream.read
    monkeypatch.setattr(stream, "read", lambda path, *rest, **how: (read.append(path.name), real(path, *rest, **how)))
    monkeypatch.setattr(disk, "check_bytes", lambda *_: pytest.fail("a file was checked in a pass of its own"))
    state = fresh()
    assert Checkpointer(state, tmp_path / "c", every=1).restore() == 1
    assert read == ["__0_0.distcp"] and bool((state["w"] == 1).all()) and bool((state["odd"] == -1).all())


def test_nothing_of_a_damaged_file_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path / "c", 2)
    path = tmp_path / "c" / "step-2" / "__0_0.distcp"
    flip(path, path.stat().st_size // 2)
    unpickled: list[bytes] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **how: unpickled.append(file.getvalue()) or load(file, **how))
    state = fresh()
    assert Checkpointer(state, tmp_path / "c", every=1).restore() == 1
    assert bool((state["w"] == 1).all()) and bool((state["odd"] == -1).all()) and state["note"] == "step 1"
    assert unpickled and not any(b"step 2" in data for data in unpickled)


def test_tensors_that_another_torch_wrote_are_read_from_verified_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path / "c")
    real = disk.envelope

    def other(shape: torch.Size, dtype: torch.dtype) -> Any:
        found = real(shape, dtype)
        return type(found)(found.head + bytes(64), found.nbytes, found.tail[64:])  # of the same length

    monkeypatch.setattr(disk, "envelope", other)
    state = fresh()
    assert Checkpointer(state, tmp_path / "c", every=1).restore() == 1
    assert bool((state["w"] == 1).all()) and bool((state["odd"] == -1).all())


def test_entry_that_starts_afresh_is_not_left_with_bytes_of_a_damaged_checkpoint(tmp_path: Path):
    """The imported step 1 leaves `w` as it is; but the damaged step 2 has written to it before."""
    torch.save({"odd": torch.ones(30, 40), "note": "imported"}, tmp_path / "some.pt")
    directory = tmp_path / "c"
    saved(directory, 2)
    for path in (directory / "step-1").iterdir():
        path.unlink()
    (directory / "step-1").rmdir()
    import_file(tmp_path / "some.pt", "torch", directory, 1, afresh=["w"])
    state = fresh()
    path = directory / "step-2" / "__0_0.distcp"
    flip(path, path.stat().st_size - 1)
    with pytest.raises(NoCheckpointRestores, match="a damaged checkpoint has overwritten it"):
        Checkpointer(state, directory, every=1).restore()
    assert bool((state["w"] == 2).all()), "the damaged checkpoint has written to it"
