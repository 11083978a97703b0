"""The injector: what it damages, when, and that it does so again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from transom_cli import inject
from transom_cli.inject import Fault, Injector, damage


def train(*faults: Fault, steps: int = 4, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], Injector]:
    """Return the weights after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    injector = Injector(model, optimizer, faults)
    weights = []
    for step in range(steps):
        optimizer.zero_grad()
        data = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(dtype)
        model(data).square().mean().backward()
        optimizer.step()
        weights.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
    injector.close()
    return weights, injector


@pytest.mark.parametrize("where", inject.PLACES)
def test_each_place_is_damaged_in_its_step_and_reproducibly(where: str) -> None:
    clean, _ = train()
    fault = Fault(where, "2", bit=24, step=3, seed=5)  # no gradient reaches the first layer's input
    first, injector = train(fault)
    again, _ = train(fault)
    assert [step for step, _, _ in injector.done] == [3]
    assert all(torch.equal(a, b) for a, b in zip(clean[:2], first[:2], strict=True)), "nothing before its step"
    assert not torch.equal(clean[2], first[2])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_bit_can_be_flipped(dtype: torch.dtype) -> None:
    for bit in range(8 * dtype.itemsize):
        tensor = torch.ones(3, 5, dtype=dtype)
        index = damage(tensor, Fault("weight", bit=bit, seed=bit), 1)
        assert index is not None and tensor[index] != 1.0 and int((tensor != 1.0).sum()) == 1
        damage(tensor, Fault("weight", bit=bit, seed=bit), 1)
        assert torch.equal(tensor, torch.ones(3, 5, dtype=dtype)), "a second flip undoes it"


def test_a_row_and_a_stuck_bit() -> None:
    rows = torch.ones(3, 5)
    damage(rows, Fault("weight", bit=22, shape="row"), 1)
    assert sorted((rows != 1).sum(1).tolist()) == [0, 0, 5]
    stuck, fault = torch.ones(3, 5), Fault("weight", bit=22, shape="stuck", steps=0)
    assert damage(stuck, fault, 1) == damage(stuck, fault, 2), "the same element in every step"
    assert int((stuck != 1).sum()) == 1


def test_chance_and_data_decide_whether_it_happens() -> None:
    hits = [damage(torch.ones(4), Fault("weight", bit=1, chance=0.3, steps=0), n) is not None for n in range(200)]
    assert 30 < sum(hits) < 90
    data = [torch.full((4,), float(n)) for n in range(200)]
    on = [damage(one.clone(), Fault("weight", bit=1, one_in=7), 1) is not None for one in data]
    assert on == [damage(one.clone(), Fault("weight", bit=1, one_in=7), 2) is not None for one in data] and any(on)
    assert not all(on)


def test_it_happens_on_its_rank_node_and_launch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    assert Fault("weight", bit=1, rank=1, node="node2").here
    assert not Fault("weight", bit=1, rank=0).here and not Fault("weight", bit=1, node="node1").here
    assert not Fault("weight", bit=1, launch=7).here


def test_faults_come_from_the_file_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "faults.json"
    monkeypatch.setenv(inject.VARIABLE, str(file))
    assert train()[1].done == []
    file.write_text(json.dumps([{"where": "weight", "bit": 30, "step": 2}]))
    assert [step for step, _, _ in train()[1].done] == [2]


def test_a_wrong_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="somewhere"):
        Fault("somewhere", bit=1)
    with pytest.raises(ValueError, match="either a bit or a value"):
        Fault("weight")
