"""Where there is memory for fewer snapshots, or for none, training goes on, and what was saved is restored."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from ckpt_memory_holders import abandon, holder_pid, memory_of
from processes import wait_for

from transom_cli.ckpt import free_memory
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import RestoredStateDiffers
from transom_cli.ckpt.save import buffer, streamed
from transom_cli.ckpt.save.staging import Stager

SAID = "snapshot(s) in memory at a time"


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many snapshots' memory as its one number says can still be had."""
    left = [3]
    real = buffer.Buffer.__init__

    def make(self: buffer.Buffer, size: int, *, hurry: bool) -> None:
        monkeypatch.setattr(buffer, "free_memory", lambda: (1 << 40) if left[0] > 0 else buffer.SPARE)
        real(self, size, hurry=hurry)
        left[0] -= 1

    monkeypatch.setattr(buffer.Buffer, "__init__", make)
    return left


def train(trainer: Checkpointer, held: dict[str, torch.Tensor], *steps: int) -> None:
    for step in steps:
        held["weights"].fill_(step)
        trainer.save(step)
        trainer.wait()


def restored(directory: Path) -> int | None:
    held = {"weights": torch.full((1000,), -1)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    step = trainer.restore()
    abandon(trainer)
    assert step is None or bool((held["weights"] == step).all())
    return step


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_snapshots_at_a_time(directory: Path, buffers: list[int], count: int, capfd) -> None:
    buffers[0] = count
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    train(trainer, held, *range(1, 8))
    assert trainer.last_error is None
    assert len(memory_of(holder_pid(directory))) == count
    assert capfd.readouterr().err.count(f"{count} {SAID}") == 1
    abandon(trainer)
    assert restored(directory) == 7


@pytest.mark.parametrize(("count", "left"), [(1, 4), (2, 7), (3, 7)])
def test_a_copy_cut_short(
    directory: Path, buffers: list[int], count: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single buffer is overwritten by the next copy: then what is durable counts."""
    buffers[0] = count
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    train(trainer, held, *range(1, 8))

    def cut(self: Stager, into: buffer.Buffer, sources: list[object]) -> None:
        into.write(0, b"half of step 8")
        raise RuntimeError("as if killed here")

    with monkeypatch.context() as patched:
        patched.setattr(Stager, "_copy", cut)
        train(trainer, held, 8)
    abandon(trainer)
    assert restored(directory) == left


def test_no_memory_at_all_writes_to_disk(directory: Path, buffers: list[int], capfd) -> None:
    """Saves need no snapshot: training waits for the disk, and each of them can be restored."""
    buffers[0] = 0
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    for step in (1, 2):
        held["weights"].fill_(step)
        trainer._saver._streamer._not_before = 0  # as if steps took long beside it
        trainer.save(step)
        held["weights"].fill_(-1)  # the next step changes the state at once
        trainer.wait(strict=True)
    assert trainer.durable == 2 and (directory / "step-1").exists() and (directory / "step-2").exists()
    said = capfd.readouterr().err
    assert said.count("without a snapshot in memory: MemoryError: a snapshot takes") == 1
    assert not list(directory.glob(".tmp-*"))
    buffers[0] = 3  # others have given some back
    train(trainer, held, 3)
    assert trainer.last_error is None and sum(one.size for one in trainer._snapshots._buffers.values()) > 0
    abandon(trainer)
    assert restored(directory) == 3


def test_checkpoint_without_a_snapshot_is_restored(directory: Path, buffers: list[int], capfd) -> None:
    buffers[0] = 0
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    train(trainer, held, 1)
    abandon(trainer)
    assert restored(directory) == 1
    assert "; proven: " in capfd.readouterr().err


def test_checkpoint_without_a_snapshot_is_not_used_if_it_is_not_the_live_state(
    directory: Path, buffers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers[0] = 0
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    real = streamed.data_file

    def stale(layout, flat, objects):
        return real(layout, {**flat, "weights": flat["weights"] + 1}, objects)

    monkeypatch.setattr(streamed, "data_file", stale)
    train(trainer, held, 1)
    abandon(trainer)
    with pytest.raises(RestoredStateDiffers, match="weights: its elements differ"):
        restored(directory)


def test_streamed_saves_leave_out_steps(directory: Path, buffers: list[int]) -> None:
    """Training is not stopped for the disk at each save: rank 0 says which step is the next."""
    buffers[0] = 0
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1)
    train(trainer, held, 1)
    trainer._saver._streamer._not_before = 4
    train(trainer, held, 2, 3)
    assert trainer.durable == 1
    assert trainer.last_error is not None and "a snapshot takes" in str(trainer.last_error)
    train(trainer, held, 4)
    assert trainer.durable == 4 and trainer.last_error is None
    abandon(trainer)


def test_state_that_changes_during_a_stuck_write_is_never_published(
    directory: Path, buffers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transom_cli.ckpt.save import streamed

    buffers[0] = 0
    monkeypatch.setattr(streamed, "STILL", 0.5)
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1)
    blocked, real = threading.Event(), os.fsync

    def stuck(fd: int) -> None:
        if threading.current_thread().name == "transom-stream":
            blocked.wait(30)
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", stuck)
        train(trainer, held, 1)
        assert "does not respond" in str(trainer.last_error)
        blocked.set()
        wait_for(lambda: not list(directory.glob(".tmp-*")), 20)
    assert trainer.durable is None and not (directory / "step-1").exists()
    abandon(trainer)


class Signs:
    """A pressure reader whose memory is short when told."""

    short = False

    def look(self) -> tuple[bool, float]:
        return self.short, 0.02


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Signs:
    made = Signs()
    monkeypatch.setattr(free_memory, "Pressure", lambda: made)
    return made


def test_buffers_are_given_back_while_memory_is_short(directory: Path, signs: Signs, capfd) -> None:
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    trainer.restore()
    train(trainer, held, *range(1, 7))
    assert len(memory_of(holder_pid(directory))) == 3
    signs.short = True
    wait_for(lambda: len(memory_of(holder_pid(directory))) == 1, 20)
    assert capfd.readouterr().err.count("memory is short") == 1
    signs.short = False
    train(trainer, held, 7)
    trainer._saver.settle()
    assert trainer.last_error is None
    train(trainer, held, 8, 9, 10)
    assert len(memory_of(holder_pid(directory))) == 3, "they come back with the memory"
    abandon(trainer)
    assert restored(directory) == 10


def test_buffers_are_given_back_at_any_moment_of_a_save(directory: Path, signs: Signs) -> None:
    """Each restored value is checked: no copy goes into memory that was given back."""
    signs.short = True
    held = {"weights": torch.zeros(100_000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    trainer.restore()
    for step in range(1, 60):
        held["weights"].fill_(step)
        trainer.save(step)
        assert trainer.last_error is None
    trainer.wait(strict=True)
    abandon(trainer)
    assert restored_wide(directory) == 59


def restored_wide(directory: Path) -> int | None:
    held = {"weights": torch.full((100_000,), -1)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    step = trainer.restore()
    abandon(trainer)
    assert bool((held["weights"] == step).all())
    return step


def test_signs_of_memory_pressure(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup" / "job"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/job\n")
    (group / "memory.events").write_text("low 0\nhigh 3\nmax 0\noom 0\noom_kill 0\n")
    (group / "memory.pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    free = [8 * buffer.SPARE]
    signs = free_memory.Pressure(proc, tmp_path / "cgroup", lambda: free[0])
    assert not signs.look()[0]
    (group / "memory.events").write_text("low 0\nhigh 5\nmax 0\noom 0\noom_kill 0\n")
    assert signs.look()[0], "the group reached its limit"
    assert not signs.look()[0], "and not again since"
    (group / "memory.pressure").write_text("some avg10=42.00 avg60=0.00 avg300=0.00 total=9\n")
    assert not signs.look()[0], "much is free: others stall"
    free[0] = 2 * buffer.SPARE
    assert signs.look()[0]
    (group / "memory.pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n")
    assert not signs.look()[0]
    free[0] = buffer.SPARE // 4
    assert signs.look() == (True, 0.05), "little is left"
