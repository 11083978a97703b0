"""Copies that run while training continues, until the next optimizer step: consistent or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from ckpt_made import Training

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save.device_copy import Samples
from transom_cli.ckpt.save.fast_copy import Copier
from transom_cli.errors import UsageError


class Gate:
    """Holds up the copy that is made later, and no other."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, copy = Gate(), Copier.copy

    def held(self: Copier, pieces: list, **more: int) -> None:
        if threading.current_thread().name.startswith("transom-later"):
            made.reached.set()
            assert made.open.wait(60)
        copy(self, pieces, **more)

    monkeypatch.setattr(Copier, "copy", held)
    yield made
    made.open.set()


def trained(steps: int = 2) -> Training:
    training = Training(1)
    for _ in range(steps):
        training.step()
    return training


def restored(directory: Path) -> tuple[int | None, str]:
    training = Training(9)
    training.step()
    checkpointer = Checkpointer(training.state, directory, every=1)
    step = checkpointer.restore()
    checkpointer.close()
    return step, training.digest()


@pytest.mark.parametrize("prove", [False, True])
def test_overlapped_save_equals_a_blocking_save(tmp_path: Path, prove: bool) -> None:
    training = Training(1)
    checkpointer = Checkpointer(training.state, tmp_path, every=1, keep=50, copy="overlapped", prove=prove)
    states = {}
    for step in range(1, 9):
        training.step()
        checkpointer.save(step)
        states[step] = training.digest()
        checkpointer.wait()  # a write that has not begun is dropped for a newer one
    checkpointer.close(strict=True)
    for step, state in sorted(states.items(), reverse=True):
        assert restored(tmp_path) == (step, state)
        (tmp_path / f"step-{step}" / "manifest.json").rename(tmp_path / f"step-{step}" / "gone")


def test_the_next_step_waits_for_the_copy_and_nothing_else_does(tmp_path: Path, gate: Gate) -> None:
    training = trained()
    checkpointer = Checkpointer(training.state, tmp_path, every=1, copy="overlapped")
    assert checkpointer.save(2)
    state = training.digest()
    assert gate.reached.wait(60) and not gate.open.is_set(), "save returned before the copy was made"
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    (training.model(x) - y).pow(2).mean().backward()
    stepped = threading.Event()

    def step() -> None:
        training.optimizer.step()
        stepped.set()

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.3)
    assert not stepped.is_set()
    gate.open.set()
    thread.join(60)
    assert stepped.is_set()
    checkpointer.close(strict=True)
    assert restored(tmp_path) == (2, state)


def test_other_state_may_change_at_once(tmp_path: Path, gate: Gate) -> None:
    """Buffers, a tensor of the trainer's own, a plain value, the random numbers: they are copied first."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    frozen = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "frozen": frozen, "optim": optimizer, "own": torch.zeros(5000), "n": 1}
    checkpointer = Checkpointer(state, tmp_path, every=1, copy="overlapped")
    assert checkpointer.save(1)
    assert gate.reached.wait(60)
    draws = torch.get_rng_state()
    model(torch.randn(8, 4))
    with torch.no_grad():
        frozen.weight.add_(1.0)
    state["own"].add_(1.0)
    state["n"] = 2
    gate.open.set()
    checkpointer.close(strict=True)
    again = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    held = {"model": again, "frozen": torch.nn.Linear(4, 4), "optim": torch.optim.AdamW(again.parameters()),
            "own": torch.ones(5000), "n": 0}  # fmt: skip
    checkpointer = Checkpointer(held, tmp_path, every=1)
    assert checkpointer.restore() == 1
    assert torch.equal(torch.get_rng_state(), draws)
    assert int(again[1].num_batches_tracked) == 0 and held["n"] == 1 and not held["own"].any()
    assert torch.equal(held["frozen"].weight + 1.0, frozen.weight)
    checkpointer.close()


@pytest.mark.parametrize("how", ["counted", "uncounted", "uncounted, proven"])
def test_save_fails_if_the_state_is_written_meanwhile(
    tmp_path: Path, gate: Gate, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    training = trained()
    prove = how == "uncounted, proven"
    checkpointer = Checkpointer(training.state, tmp_path, every=1, copy="overlapped", prove=prove)
    checkpointer.save(2)
    assert gate.reached.wait(60)
    weight = training.model[0].weight
    with torch.no_grad():
        (weight if how == "counted" else weight.data).mul_(0.5)  # clipped, or an average swapped in
    gate.open.set()
    checkpointer.wait()
    assert checkpointer.last_error is not None
    assert "model.0.weight changed outside an optimizer's step" in checkpointer.last_error.why
    assert 'copy="blocking"' in capfd.readouterr().err
    assert not list(tmp_path.glob("step-*"))
    training.step()
    checkpointer.save(3)
    checkpointer.close(strict=True)
    assert restored(tmp_path) == (3, training.digest())


@pytest.mark.parametrize("size", [0, 1, 128, 129, 1000])
def test_samples_find_a_write_to_the_tensor_or_to_its_copy(size: int) -> None:
    class Source(NamedTuple):
        name: str
        local: torch.Tensor
        to: int
        size: int

    live, copy = torch.arange(size, dtype=torch.uint8), torch.arange(size, dtype=torch.uint8)
    samples = Samples([Source("x", live, copy.data_ptr(), size)])
    assert samples.take_again() == samples.differences() == []
    for changed in (live, copy):
        changed.data.add_(1)
    expected = ["x"] if size else []
    assert samples.take_again() == samples.differences() == expected


def test_write_after_the_copy_does_no_harm(tmp_path: Path) -> None:
    training = trained()
    checkpointer = Checkpointer(training.state, tmp_path, every=1, copy="overlapped")
    checkpointer.save(2)
    state = training.digest()
    deadline = time.monotonic() + 60
    while not (tmp_path / "step-2").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with torch.no_grad():
        training.model[0].weight.mul_(0.5)
    checkpointer.close(strict=True)
    assert restored(tmp_path) == (2, state)


def test_close_removes_the_optimizer_hook(tmp_path: Path) -> None:
    from torch.optim import optimizer

    before = len(optimizer._global_optimizer_pre_hooks)
    checkpointer = Checkpointer(trained().state, tmp_path, every=1, copy="overlapped")
    assert len(optimizer._global_optimizer_pre_hooks) == before + 1
    checkpointer.close()
    checkpointer.close()
    assert len(optimizer._global_optimizer_pre_hooks) == before


def test_unknown_copy_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='copy=\'lazy\' must be "blocking" or "overlapped"'):
        Checkpointer({}, tmp_path, every=1, copy="lazy")  # type: ignore[arg-type]
