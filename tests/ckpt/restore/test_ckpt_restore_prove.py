"""A resumed training has the state that was saved, or it is refused: corruptions of every kind between the two."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from ckpt_made import Training
from torch import nn

from transom_cli.ckpt import digest
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import RestoredStateDiffers
from transom_cli.ckpt.inventory import Candidate, read_manifest
from transom_cli.ckpt.manifest import encode
from transom_cli.ckpt.proof import decode
from transom_cli.ckpt.restore import resume
from transom_cli.ckpt.save import staging

pytestmark = pytest.mark.usefixtures("holder_within")
WIDE = 24


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDE, WIDE)
        self.qkv = nn.Linear(WIDE, 3 * WIDE)
        self.out = nn.Linear(3 * WIDE, WIDE)
        self.head = nn.Linear(WIDE, WIDE, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        return self.head(self.out(self.qkv(self.embed(x))))


class Small(Training):
    """The training of the other tests, with a model that has tied weights and a QKV projection."""

    def __init__(self, seed: int, *, master: bool = False) -> None:
        super().__init__(seed)
        self.model = Tied().bfloat16() if master else Tied()
        parameters = list(self.model.parameters())
        self.master = [p.detach().clone().float().requires_grad_() for p in parameters] if master else parameters
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.state |= {"model": self.model, "optim": self.optimizer, "schedule": self.schedule}

    def step(self) -> None:
        self.data.position += 1
        self.model(torch.randint(0, WIDE, (4,))).float().pow(2).mean().backward()
        for held, parameter in zip(self.master, self.model.parameters(), strict=True):
            if held is not parameter:
                held.grad = parameter.grad.float()
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for held, parameter in zip(self.master, self.model.parameters(), strict=True):
                if held is not parameter:
                    parameter.copy_(held)
        self.model.zero_grad()
        self.optimizer.zero_grad()


def _moments(t: Small) -> dict:
    return t.optimizer.state[t.optimizer.param_groups[0]["params"][1]]


def _swap_qkv(t: Small) -> None:
    weight = t.model.qkv.weight.data  # heads in place of q, k and v as the outer order
    weight.copy_(weight.view(3, 4, WIDE // 4, WIDE).transpose(0, 1).reshape(3 * WIDE, WIDE))


def _untie(t: Small) -> None:
    t.model.head.weight = nn.Parameter(t.model.head.weight.detach().clone())


CORRUPTIONS = {
    "moments lost": (lambda t: t.optimizer.state.clear(), "optim.state"),
    "a moment zeroed": (lambda t: _moments(t)["exp_avg"].zero_(), "optim.state.qkv.weight.exp_avg"),
    "a moment in another dtype": (
        lambda t: _moments(t).update(exp_avg=_moments(t)["exp_avg"].half()), "it is float16[72, 24], and was float32",
    ),
    "a wrong step of the optimizer": (lambda t: _moments(t)["step"].add_(1), "optim.state.qkv.weight.step"),
    "a wrong step of the schedule": (lambda t: setattr(t.schedule, "last_epoch", 0), "schedule.last_epoch"),
    "another learning rate": (lambda t: t.optimizer.param_groups[0].update(lr=1.0), "optim.param_groups.0.lr"),
    "QKV split in another way": (_swap_qkv, "model.qkv.weight: its elements differ"),
    "a matrix transposed": (
        lambda t: t.model.embed.weight.data.copy_(t.model.embed.weight.data.t().clone()), "model.embed.weight",
    ),
    "one bit": (lambda t: t.model.out.bias.data.view(torch.int32)[3].bitwise_xor_(1), "model.out.bias"),
    "a tied weight untied": (_untie, "it was one tensor with"),
    "a buffer": (lambda t: t.model.seen.add_(1), "model.seen"),
    "the data position dropped": (lambda t: setattr(t.data, "position", 0), "ranks.0.data.position"),
    "random numbers": (lambda t: torch.rand(1), "ranks.0.rng.torch"),
    "a plain value": (lambda t: t.state["note"]["losses"].append(1.0), "note"),
}  # fmt: skip


def saved(directory: Path, *, steps: int = 2, **options) -> Small:
    training = Small(1, **options)
    checkpointer = Checkpointer(training.state, directory, every=1)
    for step in range(1, steps + 1):
        training.step()
        checkpointer.save(step, force=True)
        checkpointer.wait(strict=True)
    checkpointer.close(strict=True)
    return training


def after_load(monkeypatch: pytest.MonkeyPatch, corrupt) -> None:
    """Let `corrupt` run when a checkpoint has been loaded, as a faulty load would."""
    load = resume.load

    def faulty(*arguments, **options):
        reason = load(*arguments, **options)
        corrupt()
        return reason

    monkeypatch.setattr(resume, "load", faulty)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSOM_MEMORY_LINGER", "3")
        directory = tmp_path_factory.mktemp("good")
        saved(directory)
    return directory


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_restored_state_that_differs_is_refused_by_name(good: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    corrupt, name = CORRUPTIONS[kind]
    fresh = Small(2)
    after_load(monkeypatch, lambda: corrupt(fresh))
    with pytest.raises(RestoredStateDiffers) as refused:
        Checkpointer(fresh.state, good, every=1).restore()
    assert refused.value.code == 18
    assert name in refused.value.why


def test_a_good_restore_is_reported_as_proven(good: Path, capsys: pytest.CaptureFixture[str]):
    fresh = Small(2)
    assert Checkpointer(fresh.state, good, every=1).restore() == 2
    assert "; proven: " in capsys.readouterr().err


def test_an_optimizers_own_parameters_that_nothing_stores_are_compared(tmp_path: Path):
    """fp32 copies of bf16 parameters: restored as bf16 alone, the next step would start from other numbers."""
    trained = saved(tmp_path, master=True)
    fresh = Small(2, master=True)
    with pytest.raises(RestoredStateDiffers, match=r"param_groups[.]param-0"):
        Checkpointer(fresh.state, tmp_path, every=1).restore()
    state = {**trained.state, "master": {str(n): p.detach() for n, p in enumerate(trained.master)}}
    checkpointer = Checkpointer(state, tmp_path / "all", every=1)
    checkpointer.save(3)
    checkpointer.close(strict=True)
    fresh = Small(2, master=True)
    copies = {**fresh.state, "master": {str(n): p.detach().clone() for n, p in enumerate(fresh.master)}}
    with pytest.raises(RestoredStateDiffers, match="the optimizer steps with a tensor that was not restored"):
        Checkpointer(copies, tmp_path / "all", every=1).restore()
    fresh = Small(3, master=True)
    state = {**fresh.state, "master": {str(n): p.detach() for n, p in enumerate(fresh.master)}}
    assert Checkpointer(state, tmp_path / "all", every=1).restore() == 3
    assert all(torch.equal(one, other) for one, other in zip(fresh.master, trained.master, strict=True))


def tied_entries() -> dict:
    tensor = torch.ones(3)
    return {"a": {"x": tensor}, "b": {"y": tensor}}


def test_a_tie_of_plain_values_counts_only_if_the_trainer_had_it_before_the_restore(tmp_path: Path, monkeypatch):
    checkpointer = Checkpointer(tied_entries(), tmp_path, every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    separate = {"a": {"x": torch.zeros(3)}, "b": {"y": torch.zeros(3)}}
    assert Checkpointer(separate, tmp_path, every=1).restore() == 1
    tied = tied_entries()
    assert Checkpointer(tied, tmp_path, every=1).restore() == 1
    after_load(monkeypatch, lambda: tied["b"].update(y=torch.ones(3)))
    with pytest.raises(RestoredStateDiffers, match=r"b[.]y: it was one tensor with a[.]x"):
        Checkpointer(tied, tmp_path, every=1).restore()


def test_the_order_of_the_parameters_in_a_group_does_not_count(tmp_path: Path):
    saved(tmp_path)
    fresh = Small(2)
    optimizer = torch.optim.AdamW(list(fresh.model.parameters())[::-1], lr=1e-2)
    fresh.state["optim"] = optimizer
    assert Checkpointer(fresh.state, tmp_path, every=1).restore() == 2


def test_a_value_that_is_no_longer_declared_per_rank_is_proven(tmp_path: Path, capsys):
    checkpointer = Checkpointer({"x": torch.ones(2), "n": 1}, tmp_path, every=1, per_rank=["x", "n"])
    checkpointer.save(1)
    checkpointer.close(strict=True)
    state = {"x": torch.zeros(2), "n": 0}
    assert Checkpointer(state, tmp_path, every=1).restore() == 1
    assert "; proven: " in capsys.readouterr().err


def test_values_may_be_declared_as_unproven(good: Path, monkeypatch: pytest.MonkeyPatch):
    fresh = Small(2)
    after_load(monkeypatch, lambda: setattr(fresh.data, "position", 0))
    assert Checkpointer(fresh.state, good, every=1, unproven=["data"]).restore() == 2


def test_an_older_checkpoint_is_used_only_if_it_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    saved(tmp_path)
    fresh = Small(2)
    loads: list[int] = []

    def once() -> None:
        loads.append(1)
        if len(loads) == 1:
            fresh.data.position = 0

    after_load(monkeypatch, once)
    assert Checkpointer(fresh.state, tmp_path, every=1).restore() == 1
    assert "passed over step-2: the state after loading is not the saved one" in capsys.readouterr().err

    older = Candidate(1, tmp_path / "step-1")  # as an earlier version of transom would have written it
    bare = dataclasses.replace(read_manifest(older), proof="")
    (older.path / "manifest.json").write_bytes(encode(bare))
    loads.clear()
    with pytest.raises(RestoredStateDiffers):
        Checkpointer(fresh.state, tmp_path, every=1).restore()


def test_a_checkpoint_without_digests_restores_and_is_called_not_proven(tmp_path: Path, capsys):
    saved(tmp_path)
    for step in (1, 2):
        one = Candidate(step, tmp_path / f"step-{step}")
        manifest = dataclasses.replace(read_manifest(one), proof="")
        (one.path / "manifest.json").write_bytes(encode(manifest))
    assert Checkpointer(Small(2).state, tmp_path, every=1).restore() == 2
    assert "not proven: it carries no digests" in capsys.readouterr().err


def test_bytes_that_are_not_the_live_state_fail_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """A stale shard: the copy of one tensor does not happen, and its bytes are those of an earlier step."""
    training = Small(1)
    checkpointer = Checkpointer(training.state, tmp_path, every=1)
    training.step()
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    copy = staging.Stager._copy
    stale, weight = "model.qkv.weight", training.model.qkv.weight.data_ptr()
    monkeypatch.setattr(
        staging.Stager, "_copy",
        lambda self, buffer, sources: copy(self, buffer, [one for one in sources if one.local.data_ptr() != weight]),
    )  # fmt: skip
    training.step()
    checkpointer.save(2)
    checkpointer.wait()
    assert checkpointer.last_error is not None
    assert checkpointer.last_error.why == f"what would be stored is not the live state of {stale}"
    assert "step-2 was not saved" in capsys.readouterr().err
    monkeypatch.setattr(staging.Stager, "_copy", copy)
    checkpointer.save(3)
    checkpointer.close(strict=True)


def test_the_digests_of_a_save_are_those_of_the_live_state(tmp_path: Path):
    training = saved(tmp_path, steps=1)
    proof = decode(read_manifest(Candidate(1, tmp_path / "step-1")).proof)
    assert proof is not None
    weight = training.model.qkv.weight
    assert proof.tensors["model.qkv.weight"].digest == digest.digest(digest.Part(weight, tuple(weight.shape), (0, 0)))
    assert ("model.embed.weight", "model.head.weight") in proof.ties
    assert "ranks.0.rng.python" in proof.values and "ranks.0.data.position" in proof.values
    assert not proof.uncovered
