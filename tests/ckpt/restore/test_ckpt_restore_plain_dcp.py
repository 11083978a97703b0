"""Directories that torch.distributed.checkpoint wrote itself: verified as far as they carry checksums."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckpt_made import Training, flip, names_in

from transom_cli.ckpt import NoCheckpointRestores
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.convert.importer import import_file
from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.optimizers import named
from transom_cli.ckpt.state import State
from transom_cli.errors import UsageError


def stock(path: Path, *, sums: bool = True) -> Training:
    """A training of three steps, saved by DCP alone."""
    training = Training(1)
    for _ in range(3):
        training.step()
    names = State(training.state, 0)._parameter_names()
    tree = {
        "model": training.model.state_dict(),
        "optim": named(training.optimizer, training.optimizer.state_dict(), names),
        "schedule": training.schedule.state_dict(),
        "mean": training.state["mean"],
        "note": training.state["note"],
    }
    torch.serialization.set_crc32_options(sums)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(tree, checkpoint_id=path, no_dist=True)
    finally:
        torch.serialization.set_crc32_options(True)
    return training


def same(ours: Training, theirs: Training) -> bool:
    pairs = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    moments = [(ours.optimizer.state[a], theirs.optimizer.state[b]) for a, b in pairs]
    models = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in models) and all(
        torch.equal(a[key], b[key]) for a, b in moments for key in b
    )


@pytest.mark.parametrize(
    ("sums", "said"),
    [(True, "verified by the CRC-32 of its archives"), (False, "not verified: it carries no checksums")],
)
def test_stock_directory_restores_and_says_whether_it_was_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sums: bool, said: str
):
    saved = stock(tmp_path / "elsewhere" / "step-3", sums=sums)
    training = Training(2)
    ck = Checkpointer(training.state, tmp_path / "c", every=1)
    assert ck.restore(tmp_path / "elsewhere" / "step-3") == 3
    assert same(training, saved) and torch.equal(training.state["mean"], saved.state["mean"])
    assert training.state["note"] == saved.state["note"]
    assert f"({said})" in capsys.readouterr().err
    training.step()
    assert ck.save(4)
    ck.close(strict=True)
    own = Training(5)
    again = Checkpointer(own.state, tmp_path / "c", every=1)
    assert again.restore(tmp_path / "elsewhere" / "step-3") == 4, "its own checkpoints come first"
    assert same(own, training)
    again.close()


def test_damaged_stock_directory_is_refused(tmp_path: Path):
    saved = stock(tmp_path / "step-3")
    data = tmp_path / "step-3" / "__0_0.distcp"
    flip(data, data.read_bytes().index(saved.model[3].bias.detach().numpy().tobytes()) + 5)
    with pytest.raises(NoCheckpointRestores, match="differs from its checksum"):
        Checkpointer(Training(2).state, tmp_path / "c", every=1).restore(tmp_path / "step-3")


def test_directory_without_a_step_in_its_name_needs_one(tmp_path: Path):
    saved = stock(tmp_path / "base")
    training = Training(2)
    ck = Checkpointer(training.state, tmp_path / "c", every=1)
    with pytest.raises(UsageError, match="Nothing says how many steps"):
        ck.restore(tmp_path / "base")
    assert ck.restore(tmp_path / "base", step=7) == 7 and same(training, saved)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        Checkpointer(training.state, tmp_path / "other", every=1).restore(tmp_path)


def test_checkpoint_of_another_training_is_verified_and_can_be_started_from(tmp_path: Path):
    training = Training(1)
    training.step()
    ck = Checkpointer(training.state, tmp_path / "first", every=1)
    ck.save(1)
    ck.close(strict=True)
    fresh = Training(2)
    assert Checkpointer(fresh.state, tmp_path / "c", every=1).restore(tmp_path / "first" / "step-1") == 1
    assert fresh.digest() == training.digest()
    assert names_in(tmp_path / "c") == []
    flip(tmp_path / "first" / "step-1" / "__0_0.distcp", 2000)
    with pytest.raises(NoCheckpointRestores, match="its checksum differs"):
        Checkpointer(fresh.state, tmp_path / "d", every=1).restore(tmp_path / "first" / "step-1")


def test_code_in_a_stock_directory_does_not_run(tmp_path: Path):
    mark = tmp_path / "ran"
    stock(tmp_path / "step-3")
    (tmp_path / "step-3" / ".metadata").write_bytes(pickle.dumps(_Program(f"touch {mark}")))
    with pytest.raises(NoCheckpointRestores, match=r"(posix|os)\.system"):
        Checkpointer(Training(2).state, tmp_path / "c", every=1).restore(tmp_path / "step-3")
    assert not mark.exists()


class _Program:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_import_of_a_stock_directory_makes_a_verified_checkpoint(tmp_path: Path):
    saved = stock(tmp_path / "base")
    (tmp_path / "c").mkdir()
    done = import_file(tmp_path / "base", "dcp", tmp_path / "c", 3)
    assert done.verified == "verified by the CRC-32 of its archives"
    assert sorted(done.entries) == ["mean", "model", "note", "optim", "schedule"]
    training = Training(2)
    assert Checkpointer(training.state, tmp_path / "c", every=1).restore() == 3 and same(training, saved)
    some = import_file(tmp_path / "base", "dcp", tmp_path / "c", 4, only=["model", "mean"], afresh=["note"])
    assert some.entries == ("model", "mean")
    state = {name: Training(3).state[name] for name in ("model", "mean", "note")}
    assert Checkpointer(state, tmp_path / "c", every=1).restore() == 4
    assert torch.equal(state["mean"], saved.state["mean"])


def test_import_of_a_damaged_stock_directory_leaves_nothing(tmp_path: Path):
    saved = stock(tmp_path / "base")
    data = tmp_path / "base" / "__0_0.distcp"
    flip(data, data.read_bytes().index(saved.model[3].bias.detach().numpy().tobytes()) + 5)
    (tmp_path / "c").mkdir()
    with pytest.raises(BadFile, match="differs from its checksum"):
        import_file(tmp_path / "base", "dcp", tmp_path / "c", 3)
    assert names_in(tmp_path / "c") == []


def without_state(path: Path) -> dict[str, torch.nn.Module]:
    """A model that DCP saved with an optimizer that has no state."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = torch.nn.Linear(3, 2)
    weights, sgd = get_state_dict(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": weights, "optim": sgd}, checkpoint_id=path, no_dist=True)
    return {"model": model}


def test_stock_directory_with_an_optimizer_that_has_no_state_restores(tmp_path: Path):
    saved = without_state(tmp_path / "step-3")["model"]
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = Checkpointer({"model": model, "optim": optimizer}, tmp_path / "c", every=1)
    assert ck.restore(tmp_path / "step-3") == 3
    assert torch.equal(model.weight, saved.weight)
    assert optimizer.param_groups[0]["lr"] == 0.5
    ck.close()


def test_stock_directory_without_moments_is_refused_for_an_optimizer_that_needs_them(tmp_path: Path):
    without_state(tmp_path / "step-3")
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ck = Checkpointer({"model": model, "optim": optimizer}, tmp_path / "c", every=1)
    with pytest.raises(NoCheckpointRestores, match="step-3 does not restore") as refused:
        ck.restore(tmp_path / "step-3")
    assert "no state of the optimizer" in str(refused.value.why)
    ck.close()


def test_megatrons_formats_for_one_parallelism_are_refused_with_what_to_do(tmp_path: Path) -> None:
    by_buffer = tmp_path / "iter_0000100"
    key = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg"
    dcp.save({key: torch.zeros(8)}, checkpoint_id=by_buffer, no_dist=True)
    checkpointer = Checkpointer({"model": torch.nn.Linear(2, 2)}, tmp_path / "out", every=1)
    with pytest.raises(NoCheckpointRestores, match="Megatron-LM that fits only the parallelism that wrote it"):
        checkpointer.restore(by_buffer, step=100)
    by_rank = tmp_path / "iter_0000200"
    (by_rank / "mp_rank_00_000").mkdir(parents=True)
    (by_rank / "mp_rank_00_000" / "model_optim_rng.pt").touch()
    with pytest.raises(UsageError, match="one file per rank") as raised:
        checkpointer.restore(by_rank, step=200)
    assert "--dist-ckpt-optim-fully-reshardable" in raised.value.hint
    checkpointer.close()
