"""Two gloo ranks, DDP and FSDP2: bit-identical resumes, shared verdicts, shared failures, other numbers of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import Popen

import pytest
import torch
from ckpt_made import Training
from ckpt_two import several_ranks, two_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from transom_cli.ckpt import WorldSizeChanged
from transom_cli.ckpt.checkpointer import Checkpointer


def _two_ranks(kind: str, directory: Path) -> list[dict]:
    done = two_ranks("ckpt_ranks_worker.py", kind, str(directory))
    passed_over = [line for line in done[0][1].splitlines() if "step-3: __" in line]
    assert passed_over == ["transom: passed over step-3: __1_0.distcp is damaged (its checksum differs)"]
    assert "transom:" not in done[1][1]  # rank 0 speaks for all
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


@pytest.mark.parametrize(
    "kind",
    [pytest.param("ddp", marks=pytest.mark.long), "fsdp"],
)
def test_two_ranks(kind: str, tmp_path: Path):
    for found in _two_ranks(kind, tmp_path):
        for name in ("unstepped", "stepped"):
            assert found[f"{name} restored"] and found[f"{name} resumed"], found
        assert found["files"] == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
        assert found["fell back to"] == 2
        assert found["refused"] == "of `every` they have: rank 0 10, rank 1 11"
        assert "Input/output error" in found["failed"]
        assert "the state could not be copied" in found["uncopied"]
        assert found["then"] == ["step-2", "step-3", "step-6"]
        assert found["exit"] == 15
    _read_by_one_rank(tmp_path / "stepped")


@pytest.mark.long
def test_no_thread_of_the_checkpointers_group_is_left_when_the_interpreter_shuts_down(tmp_path: Path):
    for out, _ in several_ranks(2, "ckpt_exit_worker.py", str(tmp_path), codes=(15,), popen=Popen):
        used, at_exit = map(int, out.splitlines()[-1].split())
        assert at_exit <= used // 2, "only those of the trainer's own group are left"


def _read_by_one_rank(directory: Path) -> None:
    """The same checkpoint in one process: refused by default, resharded on request, and readable by stock torch."""
    alone = Training(3)
    with pytest.raises(WorldSizeChanged, match="written by 2 ranks, and this training has 1"):
        Checkpointer(alone.state, directory, every=1).restore()
    assert Checkpointer(alone.state, directory, every=1, reshard=True).restore() == 3
    assert alone.data.position == 0  # not taken from another rank
    dcp_to_torch_save(directory / "step-3", directory.parent / "one.pt")
    one = torch.load(directory.parent / "one.pt", weights_only=False)
    assert {rank: held["data"]["position"] for rank, held in one["ranks"].items()} == {"0": 3, "1": 3}
    for name, parameter in alone.model.named_parameters():
        assert torch.equal(one["model"][name], parameter)
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(one["optim"]["state"][name][moment], alone.optimizer.state[parameter][moment])
