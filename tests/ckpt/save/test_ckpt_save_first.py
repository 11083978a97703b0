"""A starting training has memory for its first snapshot before its first step, as large as it will need."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ckpt_memory_holders import abandon

from transom_cli.ckpt.checkpointer import Checkpointer, garbage_collection_paused
from transom_cli.ckpt.save import snapshots
from transom_cli.ckpt.save.snapshots import Snapshots

WIDTH = 2048  # 16 MiB of weights
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all snapshots' memory that was made, in order."""
    sizes: list[int] = []
    real = Snapshots._make

    def make(self: Snapshots, index: int, size: int, *, take: bool = True) -> object:
        sizes.append(size)
        return real(self, index, size, take=take)

    monkeypatch.setattr(Snapshots, "_make", make)
    return sizes


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (lambda p: torch.optim.AdamW(p), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
        (lambda p: torch.optim.SGD(p, lr=0.1), 1),
        (lambda p: torch.optim.Adagrad(p), 2),
    ],
    ids=["adamw", "momentum", "sgd", "adagrad"],
)
def test_first_buffers_include_the_coming_optimizer_state(
    directory: Path, made: list[int], make: Make, times: int
) -> None:
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = make(list(model.parameters()))
    trainer = Checkpointer({"model": model, "optim": optimizer}, directory, every=1, persist=100)
    assert trainer.restore() is None
    first, *others = made
    assert len(others) == 2 and min(others) >= first
    assert sum(one.size for one in trainer._snapshots._buffers.values()) >= first >= times * WIDTH * WIDTH * 4
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    trainer.save(1)
    trainer.wait(strict=True)
    assert len(made) == 3, "they go where they were meant to"
    again = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    abandon(trainer)
    other = Checkpointer({"model": again, "optim": make(list(again.parameters()))}, directory, every=1, persist=100)
    assert other.restore() == 1
    assert torch.equal(again.weight, model.weight)
    abandon(other)


def test_memory_that_a_starting_training_needs_is_left_free(
    directory: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is room for three snapshots and little more, two are made at the start; the third is, when it is."""
    held = {"weights": torch.zeros(WIDTH * WIDTH)}
    monkeypatch.setattr(snapshots, "free_memory", lambda: snapshots.SPARE + int(3.5 * made[0]) - sum(made))
    trainer = Checkpointer(held, directory, every=1, persist=100)
    assert trainer.restore() is None
    assert len(made) == 2
    for step in (1, 2):
        trainer.save(step)
        trainer.wait(strict=True)
    assert len(made) == 3, "what stands in a save's way is the memory that there is, then"
    abandon(trainer)


def test_protection_starts_with_two_snapshots_and_takes_a_third_when_both_are_in_use(
    directory: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "GROW", 0.1)
    trainer = Checkpointer({"weights": torch.zeros(WIDTH)}, directory, every=1, persist=100, protect="replica")
    assert trainer.restore() is None
    for step in (1, 2, 3):
        trainer.save(step)
        trainer.wait(strict=True)
    assert len(made) == 2
    share = next(share for share in trainer._snapshots._shares.values() if share.step == 3)
    about = {"step": 3, "file": share.file, "size": share.size, "sum": share.sum}
    _, fds = trainer._snapshots.daemon.send("fetch", check=False, **about)  # type: ignore[misc]
    os.close(fds[0])
    for step in (4, 5):  # step 3 is being read, and the newest is kept
        trainer.save(step)
        trainer.wait(strict=True)
    assert len(made) == 3
    abandon(trainer)


def test_garbage_collection_is_paused_and_restored() -> None:
    with pytest.raises(KeyError), garbage_collection_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage_collection_paused():
            pass
        assert not gc.isenabled(), "a trainer that has switched it off wants it off"
    finally:
        gc.enable()
