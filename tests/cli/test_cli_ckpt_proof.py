"""`transom ckpt diff` and `verify --deep`, on checkpoints of a Checkpointer and of torch's own DCP."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from typer.testing import CliRunner

from transom_cli.ckpt import files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.inventory import Candidate, read_manifest
from transom_cli.ckpt.manifest import encode
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.errors import NoCheckpoint


def run(*words: object):
    return CliRunner().invoke(ckpt_app, [str(word) for word in words])


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, and one of DCP with the first one's tensors."""
    directory = tmp_path_factory.mktemp("there")
    torch.manual_seed(1)
    state = {"w": {"a": torch.randn(40, 30), "b": torch.zeros(7)}, "lr": 0.1}
    checkpointer = Checkpointer(state, directory, every=1)
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    dcp.save({"w": {name: one.clone() for name, one in state["w"].items()}, "lr": 0.1}, checkpoint_id=directory / "dcp")
    state["w"]["a"][3, 4] += 2.0
    state["w"]["b"] = torch.zeros(8)
    state["lr"] = 0.2
    checkpointer.save(2)
    checkpointer.close(strict=True)
    return directory


def test_diff_names_what_differs_and_by_how_much(there: Path):
    result = run("diff", there / "step-1", there / "step-2", "--json")
    assert result.exit_code == 1
    found = {one["name"]: one for one in json.loads(result.stdout)["differences"]}
    a = found["w.a"]
    assert (a["kind"], a["count"], a["total"]) == ("elements", 1, 1200) and abs(a["max_abs"] - 2.0) < 1e-6
    assert (found["w.b"]["kind"], found["w.b"]["detail"]) == ("shape", "float32[7] in A, float32[8] in B")
    assert found["lr"]["detail"] == "0.1 in A, 0.2 in B"
    text = run("diff", there / "step-1", there / "step-2")
    assert "w.a" in text.stdout and "1 of 1200 elements, max abs 2" in text.stdout


def test_diff_of_a_checkpoint_with_one_of_dcp(there: Path):
    result = run("diff", there / "step-1", there / "dcp", "--json")
    kinds = {one["name"]: one["kind"] for one in json.loads(result.stdout)["differences"]}
    assert set(kinds.values()) == {"only in A"} and all(name.startswith("ranks.0.rng.") for name in kinds)
    same = run("diff", there / "dcp", there / "dcp")
    assert same.exit_code == 0 and "the same state" in same.stderr


def test_deep_verification_finds_what_checksums_do_not(there: Path, tmp_path: Path):
    """The file was wrong before its checksum was made: only the digest of the saved state knows."""
    assert "proven: " in run("verify", there, "--deep").stdout
    shutil.copytree(there / "step-2", tmp_path / "step-2")
    one = Candidate(2, tmp_path / "step-2")
    data = one.path / "__0_0.distcp"
    raw = bytearray(data.read_bytes())
    manifest = read_manifest(one)
    swapped = raw.replace(_row(there), bytes(reversed(_row(there))), 1)
    assert swapped != raw
    data.write_bytes(swapped)
    entries = tuple(files.measure(one.path / entry.name) for entry in manifest.files)
    (one.path / "manifest.json").write_bytes(encode(dataclasses.replace(manifest, files=entries)))
    assert run("verify", tmp_path).exit_code == 0
    error = run("verify", tmp_path, "--deep").exception
    assert isinstance(error, NoCheckpoint) and "`w.a` is not what was saved" in error.why


def _row(there: Path) -> bytes:
    torch.manual_seed(1)
    return torch.randn(40, 30)[0].numpy().tobytes()


def test_a_checkpoint_of_dcp_is_read_and_called_not_proven(there: Path):
    result = run("verify", there / "dcp", "--deep")
    assert result.exit_code == 0 and "not proven: it carries no digests" in result.stdout
    assert run("diff", there, there / "nowhere").exit_code == 2
