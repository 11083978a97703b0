"""Objects are judged by what they hold: torchtitan's containers are saved, killed and restored; what cannot be saved is
refused when the Checkpointer is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ckpt_containers import ModelWrapper, OptimizersContainer
from ckpt_two import several_ranks
from torch import nn

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.errors import UsageError

KILLED = -9


def _trained(directory: Path, *words: str) -> list[dict]:
    codes = (KILLED,) if words[1:] else (0,)
    done = several_ranks(2, "ckpt_containers_worker.py", str(directory), *words, codes=codes)
    assert not any("was not saved" in err for _, err in done), done[0][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fsdp", pytest.param("plain", marks=pytest.mark.long)])
def test_torchtitan_containers_are_saved_killed_and_restored_bit_for_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KIND", kind)
    whole = _trained(tmp_path / "whole", "6")
    killed = _trained(tmp_path / "killed", "4", "die")
    resumed = _trained(tmp_path / "killed", "6")
    assert [one["began"] for one in (*whole, *killed)] == [None] * 4
    assert [one["began"] for one in resumed] == [4, 4], "not from step 0"
    assert [one["digest"] for one in resumed] == [one["digest"] for one in whole]
    assert [one["position"] for one in resumed] == [6, 6]
    assert all(one["unstepped"] for one in (*whole, *killed)), "looking at the state does not step the optimizers"


def test_sharded_state_of_a_container_is_stored_once_and_read_by_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KIND", "fsdp")
    _trained(tmp_path / "c", "2")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    optimizer = OptimizersContainer([model], lr=1e-2)
    state = {"model": ModelWrapper([model]), "optimizer": optimizer}
    assert Checkpointer(state, tmp_path / "c", every=1, reshard=True).restore() == 2
    assert all(bool(inner.state) for inner in optimizer.optimizers)


class Reluctant:
    def state_dict(self):
        raise RuntimeError("consolidate first")

    def load_state_dict(self, state) -> None:
        pass


def test_object_whose_state_cannot_be_read_is_refused_at_construction(tmp_path: Path):
    with pytest.raises(UsageError, match=r"`loader`.*(?s:.*)consolidate first"):
        Checkpointer({"model": nn.Linear(2, 2), "loader": Reluctant()}, tmp_path / "c", every=1)


def test_value_that_cannot_be_stored_is_refused_at_construction(tmp_path: Path):
    with pytest.raises(UsageError, match=r"`note\.callback`"):
        Checkpointer({"model": nn.Linear(2, 2), "note": {"callback": lambda: 0}}, tmp_path / "c", every=1)


def test_optimizer_with_the_usual_state_is_stored_under_parameter_names(directory: Path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer({"model": model, "optim": optimizer}, directory, every=1)
    assert not optimizer.state
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    checkpointer.save(1)
    checkpointer.close(strict=True)
