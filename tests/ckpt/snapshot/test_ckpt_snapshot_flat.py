"""However many saves a training makes, it and its daemon stay as large as they were."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from ckpt_made import names_in
from ckpt_memory_holders import abandon, daemon_path, end_holder, holder_pid, memory_of

from transom_cli.ckpt.checkpointer import Checkpointer

GROWTH = 8 << 20  # bytes of resident memory that allocators may take between the two looks


_THP_DISABLE = 41  # PR_SET_THP_DISABLE of prctl(2)


@pytest.fixture
def no_huge_pages() -> Iterator[None]:
    """The kernel collapses memory into huge pages at any time, which counts pages that nobody has touched."""
    libc = ctypes.CDLL(None)
    libc.prctl(_THP_DISABLE, 1, 0, 0, 0)
    yield
    libc.prctl(_THP_DISABLE, 0, 0, 0, 0)


def entries(folder: Path) -> int:
    return len(list(folder.iterdir()))


@dataclass(frozen=True)
class Size:
    resident: tuple[int, int]  # bytes: the trainer's, the daemon's
    descriptors: tuple[int, int]
    threads: tuple[int, int]
    memories: int
    files: tuple[int, int]  # in the directory with all that is below, and beside the daemon's socket

    @classmethod
    def of(cls, directory: Path) -> Size:
        pids = os.getpid(), holder_pid(directory)
        page = os.sysconf("SC_PAGE_SIZE")
        return cls(
            tuple(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids),
            tuple(entries(Path(f"/proc/{pid}/fd")) for pid in pids),
            tuple(entries(Path(f"/proc/{pid}/task")) for pid in pids),
            len(memory_of(pids[1])),
            (len(list(directory.rglob("*"))), entries(Path(daemon_path(directory)).parent)),
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "last", "persist"), [(100, 300, 50), pytest.param(1000, 10_000, 100, marks=pytest.mark.long)]
)
@pytest.mark.usefixtures("no_huge_pages")
def test_many_saves_leave_nothing_behind(tmp_path: Path, first: int, last: int, persist: int) -> None:
    directory = tmp_path / "c"
    held = {"weights": torch.zeros(1000)}
    trainer = Checkpointer(held, directory, every=1, persist=persist)
    trainer.restore()
    sizes = {}
    for step in range(1, last + 1):
        held["weights"].fill_(step)
        trainer.save(step)
        if step in (first, last):
            trainer.wait(strict=True)
            sizes[step] = Size.of(directory)
            print(step, sizes[step])
    before, after = sizes[first], sizes[last]
    assert after.memories == before.memories == 3
    assert after.files == before.files, names_in(directory)
    for few, many in zip((*before.descriptors, *before.threads), (*after.descriptors, *after.threads), strict=True):
        assert many <= few + 2  # what comes and goes with a durable one
    for few, many in zip(before.resident, after.resident, strict=True):
        assert many <= few + GROWTH
    abandon(trainer)
    end_holder(directory)
