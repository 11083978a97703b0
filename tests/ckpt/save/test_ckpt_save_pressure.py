"""Where there is memory for fewer snapshots, or for none, training goes on, and what was saved is restored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ckpt_memory_holders import abandon, holder_pid, memory_of

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save import buffer
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


def test_no_memory_at_all(directory: Path, buffers: list[int], capfd) -> None:
    buffers[0] = 0
    held = {"weights": torch.zeros(1000, dtype=torch.int64)}
    trainer = Checkpointer(held, directory, every=1, persist=4)
    train(trainer, held, 1, 2)
    assert trainer.last_error is not None and "a snapshot takes" in str(trainer.last_error)
    said = capfd.readouterr().err
    assert "step-2 was not saved" in said and "training continues" in said
    buffers[0] = 3  # others have given some back
    train(trainer, held, 3)
    assert trainer.last_error is None
    abandon(trainer)
    assert restored(directory) == 3
