"""A sharded checkpoint through one file: assembled, then divided over two ranks, or loaded by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ckpt_made import Training, names_in
from ckpt_two import two_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from typer.testing import CliRunner

from transom_cli.ckpt import WorldSizeChanged
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.cli.ckpt import ckpt_app


def _done(*words: object) -> None:
    result = CliRunner().invoke(ckpt_app, [str(word) for word in words])
    assert result.exit_code == 0, result.exception


def _ranks(task: str, *directories: Path) -> list[list[dict]]:
    done = two_ranks("ckpt_carry_worker.py", task, *map(str, directories))
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


@pytest.mark.long
def test_shards_are_put_together_and_spread_again(tmp_path: Path):
    saved = _ranks("save", tmp_path / "c")
    assert names_in(tmp_path / "c" / "step-2") == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
    _done("export", tmp_path / "c", "-o", tmp_path / "m.pt")
    _done("export", tmp_path / "c", "-o", tmp_path / "all.pt", "--all")
    dcp_to_torch_save(tmp_path / "c" / "step-2", tmp_path / "stock.pt")
    ours, stock = (torch.load(tmp_path / name, weights_only=False) for name in ("all.pt", "stock.pt"))
    assert list(ours["model"]) == list(stock["model"]) and set(ours["ranks"]) == {"0", "1"}
    for name, tensor in stock["model"].items():
        assert torch.equal(ours["model"][name], tensor)
        assert torch.equal(ours["optim"]["state"][name]["exp_avg"], stock["optim"]["state"][name]["exp_avg"])

    for name in ("m", "all"):
        (tmp_path / name).mkdir()
        _done("import", tmp_path / f"{name}.pt", tmp_path / name, "--step", 6)
    for rank, found in enumerate(_ranks("restore", tmp_path / "m", tmp_path / "all")):
        assert [(one["step"], one["position"]) for one in found] == [(6, 0), (6, 2)]
        assert [one["whole"] for one in found] == [saved[rank][0]["whole"]] * 2

    alone = Training(3)
    assert Checkpointer(alone.state, tmp_path / "m", every=1).restore() == 6  # of no number of ranks
    for name, parameter in alone.model.named_parameters():
        assert torch.equal(stock["model"][name], parameter)
    with pytest.raises(WorldSizeChanged):
        Checkpointer(alone.state, tmp_path / "all", every=1).restore()
