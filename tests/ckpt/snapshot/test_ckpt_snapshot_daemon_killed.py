"""A daemon killed at any question of a save costs no snapshot; of a restore, no more than the memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_memory_holders import holder_pid

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.rpc.local import Client

WIDTH = 1000


class Killing:
    """Kills the daemon before it is asked `name` for the `count`-th time, or after it has answered that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, *, after: bool) -> None:
        self.left = 0
        real = Client.call

        def call(client: Client, asked: str, *more: Any, **about: Any) -> Any:
            here = asked == name and self.left == 1
            self.left -= asked == name
            if here and not after:
                os.kill(holder_pid(directory), signal.SIGKILL)
            answer = real(client, asked, *more, **about)
            if here and after:
                os.kill(holder_pid(directory), signal.SIGKILL)
            return answer

        monkeypatch.setattr(Client, "call", call)

    @property
    def done(self) -> bool:
        return self.left <= 0


def state(step: int) -> dict[str, Any]:
    return {"n": step, "weights": torch.full((WIDTH,), step)}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("name", "count"),
    [("lend", 1), ("lend", 2), ("lend", 3), ("take", 1), ("take", 2), ("hold", 1), ("hold", 4), ("commit", 1),
     ("commit", 4), ("persist", 1)],
)  # fmt: skip
def test_a_save_goes_on_with_the_next_holder(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    name: str, count: int, after: bool,
) -> None:  # fmt: skip
    killing = Killing(monkeypatch, directory, name, after=after)
    held = state(0)
    trainer = Checkpointer(held, directory, every=1, persist=5)
    killing.left = count  # before restore(): the first memory is made in the background after it
    assert trainer.restore() is None
    for step in range(1, 8):
        held["n"] = step
        held["weights"].fill_(step)
        trainer.save(step)
    trainer.wait()
    assert killing.done
    assert "was not saved" not in capfd.readouterr().err or name == "persist"
    found = state(0)
    again = Checkpointer(found, directory, every=1, persist=5)  # the trainer before is as good as gone
    assert again.restore() == 7
    assert found["n"] == 7 and bool((found["weights"] == 7).all())
    assert "step-7 in memory" in capfd.readouterr().err
    again.close(strict=True)
    trainer._snapshots.close(durable=False)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["hello", "join", "survey", "record", "fetch", "rewind"])
def test_a_restore_goes_on_with_what_there_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    held = state(0)
    trainer = Checkpointer(held, directory, every=1, persist=5)
    for step in range(1, 8):
        held["n"] = step
        held["weights"].fill_(step)
        trainer.save(step)
    trainer.wait()
    killing = Killing(monkeypatch, directory, name, after=after)
    killing.left = 1
    found = state(0)
    again = Checkpointer(found, directory, every=1, persist=5)
    step = again.restore()
    assert killing.done
    assert step in (5, 7) and found["n"] == step and bool((found["weights"] == step).all())
    assert again.save(8)
    again.close(strict=True)
    assert (directory / "step-8").exists()
    trainer._snapshots.close(durable=False)
