"""Memory to a file, past the page cache where the file system allows it."""

from __future__ import annotations

import errno
import mmap
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from transom_cli.ckpt import files

SIZE = 3 * files._WRITE_PIECE


@pytest.fixture(scope="module")
def memory() -> memoryview:
    made = mmap.mmap(-1, SIZE)
    made[:] = random.Random(4).randbytes(SIZE)
    return memoryview(made)


def refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Let os.<name> refuse O_DIRECT, as a file system without it does at one of two places."""
    called, real = [], getattr(os, name)
    state = {"direct": False}
    opened = os.open

    def open_(path: Any, flags: int, *rest: Any) -> int:
        state["direct"] = bool(flags & os.O_DIRECT)
        return opened(path, flags, *rest)

    def refusing(*args: Any) -> Any:
        if (args[1] & os.O_DIRECT) if name == "open" else state["direct"]:
            called.append(name)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(*args)

    if name != "open":
        monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, name, refusing)
    return called


SEGMENTS = [
    [(0, SIZE)],
    [(0, 8 * 4096 + 64)],
    [(4096, 2 * files._WRITE_PIECE + 640)],
    [(64, 640)],
    [(0, 64), (640, 9984)],
    [],
]


@pytest.mark.parametrize("segments", SEGMENTS, ids=str)
@pytest.mark.parametrize("refused", ["", "open", "write"])
def test_the_bytes_and_their_checksum(
    tmp_path: Path, memory: memoryview, segments: list[tuple[int, int]], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = refuse(monkeypatch, refused) if refused else []
    entry = files.write_segments(tmp_path / "part", memory, segments)
    monkeypatch.undo()
    assert (tmp_path / "part").read_bytes() == b"".join(memory[at : at + size] for at, size in segments)
    assert entry == files.measure(tmp_path / "part")
    assert bool(called) == (bool(refused) and len(segments) == 1 and segments[0][0] % 4096 == 0)


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, memory: memoryview) -> None:
    (tmp_path / "part").write_bytes(b"mine")
    with pytest.raises(FileExistsError) as error:
        files.write_segments(tmp_path / "part", memory, [(0, 4096)])
    assert error.value.filename == str(tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == b"mine"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("segments", [[(0, SIZE)], [(0, 64), (4096, SIZE - 4096)]], ids=["direct", "cached"])
def test_a_file_that_cannot_be_finished_is_an_error_with_its_name(
    tmp_path: Path, memory: memoryview, segments: list[tuple[int, int]]
) -> None:
    with files_of_at_most(files._WRITE_PIECE + 4096), pytest.raises(OSError, match="File too large") as error:
        files.write_segments(tmp_path / "part", memory, segments)
    assert error.value.filename == str(tmp_path / "part")
