"""One rank: a resumed training is the uninterrupted one, bit for bit; and what a checkpoint may hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ckpt_made import Training, names_in
from torch import nn
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.inventory import Candidate
from transom_cli.ckpt.restore import resume
from transom_cli.errors import UsageError


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_resumed_training_is_bit_identical(tmp_path: Path, at: int):
    """At 0 the optimizer has not stepped: nothing, and not a zeroed state, must come back."""
    training = Training(1)
    checkpointer = Checkpointer(training.state, tmp_path, every=1)
    assert checkpointer.restore() is None
    for _ in range(at):
        training.step()
    before = training.digest()
    assert checkpointer.save(at)
    assert training.digest() == before  # saving changes nothing
    for _ in range(4):  # while it is being written
        training.step()
    checkpointer.close(strict=True)

    again = Training(2)
    again.step()  # leaves optimizer state and random numbers that must all be replaced
    assert Checkpointer(again.state, tmp_path, every=1).restore() == at
    assert again.digest() == before
    for _ in range(4):
        again.step()
    assert again.digest() == training.digest()


def test_what_save_saw_is_what_is_written(tmp_path: Path):
    state = {"t": torch.zeros(1 << 20), "n": [1, 2]}
    checkpointer = Checkpointer(state, tmp_path, every=1)
    checkpointer.save(1)
    state["t"].fill_(7)
    state["n"].append(3)
    checkpointer.close(strict=True)
    fresh = {"t": torch.ones(1 << 20), "n": None}
    assert Checkpointer(fresh, tmp_path, every=1).restore() == 1
    assert not fresh["t"].any() and fresh["n"] == [1, 2]


def test_every_sort_of_value_comes_back(tmp_path: Path):
    def values() -> dict:
        base = torch.arange(20, dtype=torch.float64).reshape(4, 5)
        return {
            "transposed": base.t(), "view": base[1:3, ::2], "scalar": torch.tensor(3), "none": torch.empty(0, 4),
            "bf16": torch.randn(5).bfloat16(), "mask": torch.tensor([True, False]),
            "plain": {"a": [1, {"b": (2.5, None)}], 7: "int key", "empty": {}, "list": []}, "text": "x\ny",
            "nested": {"deep": {"w": torch.randn(3)}, "list": [torch.randn(2), {"z": torch.randn(1)}, {}]},
        }  # fmt: skip

    saved = values()
    checkpointer = Checkpointer(saved, tmp_path, every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    fresh = {key: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for key, v in saved.items()}
    Checkpointer(fresh, tmp_path, every=1).restore()

    def same(a, b) -> bool:
        if isinstance(a, torch.Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)):
            return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
        return a == b

    assert same(saved, fresh)


def test_optimizer_state_keeps_its_dtype_and_its_gaps(tmp_path: Path):
    """fp32 moments of bf16 parameters, which Optimizer.load_state_dict would cast; and a parameter never stepped."""

    def make(seed: int):
        torch.manual_seed(seed)
        model = nn.ModuleDict({"used": nn.Linear(3, 3), "idle": nn.Linear(2, 2)}).bfloat16()
        return model, torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)

    model, optimizer = make(0)
    model["used"](torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    moment = torch.full((3, 3), 1 + 2**-20)
    optimizer.state[model["used"].weight]["momentum_buffer"] = moment
    checkpointer = Checkpointer({"model": model, "optim": optimizer}, tmp_path, every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    model, optimizer = make(1)
    Checkpointer({"model": model, "optim": optimizer}, tmp_path, every=1).restore()
    back = optimizer.state[model["used"].weight]["momentum_buffer"]
    assert back.dtype == torch.float32 and torch.equal(back, moment)
    assert model["idle"].weight not in optimizer.state
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.1))


def test_stock_torch_reads_it(tmp_path: Path):
    training = Training(1)
    training.step()
    checkpointer = Checkpointer(training.state, tmp_path / "c", every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    other = Training(2)
    target = {"model": other.model.state_dict()}
    dcp_load(target, checkpoint_id=tmp_path / "c" / "step-1")
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), training.model.parameters(), strict=True))
    dcp_to_torch_save(tmp_path / "c" / "step-1", tmp_path / "one.pt")
    one = torch.load(tmp_path / "one.pt", weights_only=False)
    assert one["ranks"]["0"]["data"] == {"position": 1, "seen": {}}
    moments = training.optimizer.state[training.model[0].weight]
    assert torch.equal(one["optim"]["state"]["0.weight"]["exp_avg"], moments["exp_avg"])
    assert one["optim"]["param_groups"][1]["params"] == ["0.weight", "4.weight"]


def test_when_a_save_is_due(tmp_path: Path):
    checkpointer = Checkpointer({"n": 1}, tmp_path, every=10, keep=9)
    assert [step for step in range(1, 25) if checkpointer.save(step)] == [10, 20]
    checkpointer.wait()
    assert checkpointer.save(23, force=True)
    checkpointer.close(strict=True)
    again = Checkpointer({"n": 0}, tmp_path, every=1, keep=9)
    assert again.restore() == 23
    assert not again.save(23)  # nothing new to keep
    assert not again.save(23, force=True)
    assert names_in(tmp_path) == ["step-10", "step-20", "step-23"]


def test_an_older_step_is_not_replaced_and_a_bad_one_is_set_aside(tmp_path: Path):
    first = Checkpointer({"n": "first"}, tmp_path, every=1, keep=9)
    for step in (1, 2):
        first.save(step)
    first.close(strict=True)
    (tmp_path / "step-2" / "manifest.json").unlink()
    second = Checkpointer(state := {"n": ""}, tmp_path, every=1, keep=9)
    assert second.restore() == 1 and state["n"] == "first"
    state["n"] = "second"
    for step in (2, 3):
        second.save(step)
    second.close(strict=True)
    assert names_in(tmp_path) == ["step-1", "step-2", "step-2.bad-1", "step-3"]
    third = Checkpointer(state := {"n": "third"}, tmp_path, every=1, keep=9)
    third.save(1)  # there, and good: it stays
    third.close(strict=True)
    assert (tmp_path / "step-1").is_dir() and not list(tmp_path.glob(".tmp-*"))
    for step in (2, 3):
        (tmp_path / f"step-{step}" / "__0_0.distcp").unlink()
    assert Checkpointer(state, tmp_path, every=1).restore() == 1 and state["n"] == "first"


def test_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRANSOM_CHECKPOINT_DIR", raising=False)
    with pytest.raises(UsageError, match="no directory"):
        Checkpointer({}, every=1)
    with pytest.raises(UsageError, match="at least 1"):
        Checkpointer({}, tmp_path, every=0)
    for name in ("ranks", "rng", ""):
        with pytest.raises(UsageError, match="cannot be a name"):
            Checkpointer({name: 1}, tmp_path, every=1)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be kept"):
        Checkpointer({}, tmp_path / "file" / "below", every=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="found each other"):
        Checkpointer({}, tmp_path, every=1)


def test_the_launcher_names_directory_and_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSOM_CHECKPOINT_DIR", str(tmp_path / "of run"))
    monkeypatch.setenv("TRANSOM_ATTEMPT", "31.2")
    old = tmp_path / "of run" / ".tmp-step-4-31.1-0123abcd"
    old.mkdir(parents=True)
    checkpointer = Checkpointer({"n": 1}, every=1)
    assert not old.exists()
    checkpointer.save(5)
    checkpointer.close(strict=True)
    assert '"attempt": "31.2"' in (tmp_path / "of run" / "step-5" / "manifest.json").read_text()
    monkeypatch.setenv("TRANSOM_ATTEMPT", "../31")
    with pytest.raises(UsageError, match="file name"):
        Checkpointer({"n": 1}, every=1)


def test_checkpoint_published_while_the_directory_is_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The snapshot daemon of the last launch may publish step 2 and remove step 1 between the listing and the read."""
    ck = Checkpointer({"n": 2}, tmp_path, every=1)
    assert ck.save(2)
    ck.close(strict=True)
    listed = iter([[Candidate(1, tmp_path / "step-1")]])
    real = resume.candidates
    monkeypatch.setattr(resume, "candidates", lambda directory: next(listed, None) or real(directory))
    again = Checkpointer({"n": 0}, tmp_path, every=1)
    monkeypatch.setattr(resume, "memory_candidates", lambda _: ([], []))
    assert again.restore() == 2
    again.close()
