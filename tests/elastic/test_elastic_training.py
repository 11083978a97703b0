"""Trainings that are killed and continue with another number of ranks, through real checkpoints and gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from transom_cli.ckpt import Checkpointer, WorldSizeChanged
from transom_cli.elastic import GlobalBatches, VirtualRanks
from transom_cli.errors import UsageError

WORKER = Path(__file__).with_name("elastic_worker.py")


def phases(*given: dict[str, Any]) -> list[list[dict[str, Any]]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TRANSOM_", "SLURM_"))}
    text = json.dumps([{"kill": 0, **one} for one in given], default=str)
    ran = subprocess.run([sys.executable, WORKER], input=text, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("worlds", "kills", "steps"),
    [pytest.param((4, 4, 3, 2, 4), (5, 9), 16, marks=pytest.mark.long), ((2, 2, 1, 2), (3,), 8)],
)
def test_a_run_with_changing_numbers_of_ranks_ends_with_the_same_bits(
    tmp_path: Path, worlds: tuple[int, ...], kills: tuple[int, ...], steps: int
) -> None:
    """The first of the worlds trains undisturbed; those after it share a run, killed at these steps, paused, ended."""
    parts = [{"steps": steps, "kill": kill} for kill in kills] + [{"steps": steps - 4}, {"steps": steps}]
    whole, *_, grown = phases(
        {"directory": tmp_path / "undisturbed", "world": worlds[0], "steps": steps},
        *({"directory": tmp_path / "elastic", "world": n} | part for n, part in zip(worlds[1:], parts, strict=True)),
    )
    assert len({one["digest"] for one in (*whole, *grown)}) == 1
    assert grown[0]["start"] == steps - 4 and grown[0]["position"] == whole[0]["position"] == steps * 12
    assert grown[0]["losses"] == whole[0]["losses"][steps - 4 :]


class Loader:
    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@pytest.mark.long
def test_an_object_that_nobody_has_a_rule_for_is_named(tmp_path: Path) -> None:
    phases({"directory": tmp_path, "world": 2, "steps": 1})
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    state = {"model": model, "optim": torch.optim.AdamW(model.parameters()), "data": GlobalBatches(103, 12, 2)}
    assert Checkpointer(state, tmp_path, every=1).restore() == 1
    drawn = torch.rand(3)
    assert Checkpointer(state, tmp_path, every=1).restore() == 1
    assert torch.equal(torch.rand(3), drawn), "random numbers are derived from the checkpoint"
    assert state["data"].position == 12
    with pytest.raises(WorldSizeChanged, match="loader: kept per rank") as refused:
        Checkpointer({**state, "loader": Loader()}, tmp_path, every=1).restore()
    assert "reshard=['loader']" in str(refused.value) and "from_rank_0=['loader']" in str(refused.value)


def test_what_cannot_be_independent_of_the_number_of_ranks_is_refused() -> None:
    batches = GlobalBatches(10, 4, 1, rank=0, world=1)
    with pytest.raises(UsageError, match="1 keeps batch statistics"):
        VirtualRanks(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), batches, 2)
    with pytest.raises(UsageError, match="fewer than the 3 ranks"):
        VirtualRanks(torch.nn.Linear(2, 2), GlobalBatches(10, 4, 1, rank=0, world=3), 2)


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    torch.manual_seed(0)
    model, unused = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    data = torch.randn(10, 3)
    batches = GlobalBatches(10, 7, 2, shuffle=False, rank=0, world=1)
    virtual = VirtualRanks(torch.nn.ModuleList([model, unused]), batches, 3)
    loss = virtual.backward(lambda samples: model(data[list(samples)]).pow(2).mean())
    expected = model(data[:7]).pow(2).mean()
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(loss, expected.double())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert unused.weight.grad is not None and not unused.weight.grad.any()
    assert batches.position == 7
