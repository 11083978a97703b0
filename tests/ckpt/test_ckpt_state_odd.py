"""State that torch itself does not bring back as it was saved, and trainings that overlook something."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from transom_cli.ckpt import Checkpointer
from transom_cli.ckpt.proof_save import SAMPLED, Ledger
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.layout import lay_out, local_plan, signature
from transom_cli.errors import UsageError


def resumed(directory: Path, state: dict[str, Any], fresh: dict[str, Any], said: pytest.CaptureFixture[str]) -> None:
    """Save `state` and restore it into `fresh`, with a proof."""
    ck = Checkpointer(state, directory, every=1)
    ck.save(1)
    ck.close(strict=True)
    again = Checkpointer(fresh, directory, every=1)
    assert again.restore() == 1
    again.close()
    assert "proven" in said.readouterr().err


class Nested(torch.optim.Optimizer):
    """As Shampoo and SOAP: lists of factors in fp32 beside parameters in bf16, counters, and a text."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "factors": [torch.rand(3, 3), torch.rand(2, 2, dtype=torch.float64)],
                    "inner": {"count": torch.tensor(7), "scale": torch.rand(3), "pair": (torch.rand(1), 5)},
                    "kind": "kronecker",
                }


def test_nested_state_of_an_optimizer_keeps_its_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made() -> tuple[nn.Module, Nested]:
        model = nn.Linear(2, 3).to(torch.bfloat16)
        return model, Nested(model.parameters())

    model, optimizer = made()
    optimizer.step()
    fresh, other = made()
    resumed(tmp_path, {"model": model, "optim": optimizer}, {"model": fresh, "optim": other}, capsys)
    saved, found = optimizer.state[model.weight], other.state[fresh.weight]
    assert [t.dtype for t in found["factors"]] == [torch.float32, torch.float64]
    assert all(map(torch.equal, found["factors"], saved["factors"]))
    assert found["inner"]["count"].dtype == torch.int64 and found["kind"] == "kronecker"
    assert torch.equal(found["inner"]["pair"][0], saved["inner"]["pair"][0])


def test_lbfgs_resumes_with_its_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made() -> tuple[nn.Module, torch.optim.LBFGS]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        return model, torch.optim.LBFGS(model.parameters(), max_iter=3)

    def train(model: nn.Module, optimizer: torch.optim.LBFGS, steps: int) -> None:
        inputs = torch.linspace(0, 1, 20).reshape(5, 4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)

    model, optimizer = made()
    train(model, optimizer, 3)
    fresh, other = made()
    resumed(tmp_path, {"model": model, "optim": optimizer}, {"model": fresh, "optim": other}, capsys)
    train(model, optimizer, 2)
    train(fresh, other, 2)
    assert torch.equal(model.weight, fresh.weight)


class Calibrated(nn.Module):
    """Its extra state grows, as that of fp8 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.history = torch.zeros(0)

    def get_extra_state(self) -> torch.Tensor:
        return self.history

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.history = state


def test_extra_state_of_another_size_is_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, fresh = nn.Sequential(nn.Linear(2, 2), Calibrated()), nn.Sequential(nn.Linear(2, 2), Calibrated())
    saved[1].history = torch.rand(5)
    resumed(tmp_path, {"model": saved}, {"model": fresh}, capsys)
    assert torch.equal(fresh[1].history, saved[1].history)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(15, dtype=torch.uint8).reshape(3, 5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.tensor([[0, 1.0], [2.0, 3.0]]).to_sparse_csr(),
    ],
    ids=["uint8", "conjugate", "negative", "csr"],
)
def test_bytes_views_and_sparse_tensors_come_back(tmp_path: Path, value: torch.Tensor, capsys: Any) -> None:
    fresh = (value.to_dense() * torch.eye(2)).to_sparse_csr() if value.layout is torch.sparse_csr else value.clone() * 2
    if value.is_conj():
        fresh = fresh.resolve_conj().conj()
    resumed(tmp_path, {"x": value}, {"x": fresh}, capsys)
    assert torch.equal(fresh.to_dense(), value.to_dense())


def test_types_smaller_than_a_byte_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`small` cannot be checkpointed"):
        Checkpointer({"small": torch.empty(0, dtype=torch.uint4)}, tmp_path, every=1)


def test_a_training_that_never_restores_is_warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        ck = Checkpointer({"n": torch.ones(1)}, tmp_path, every=1)
        ck.save(1)
        ck.close()
    said = capsys.readouterr().err
    assert said.count("restore() was not called, and step-1 is in") == 1


def test_every_tensor_is_sampled_in_turn_at_any_interval() -> None:
    flat = {f"t{number}": torch.ones(4) for number in range(3 * SAMPLED)}
    paths: Any = {key: (key,) for key in flat}
    layout = lay_out(signature(flat, paths), local_plan(flat, paths, first=True), None)
    ledger, seen = Ledger(Ranks()), set[str]()
    ledger._shared = len(flat)
    for step in range(3, 60, 3):
        ledger.sample(step, flat, SimpleNamespace(layout=layout, copying=None), {})  # type: ignore[arg-type]
        seen |= {index.fqn for index in ledger._sample.digests}
    assert seen == set(flat)
    ledger.close()
