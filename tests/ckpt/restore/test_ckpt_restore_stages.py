"""Pipeline parallelism: each rank has its own keys and optimizer, and stages may be split otherwise at a restore."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ckpt_two import several_ranks


def run(act: str, split: str, directory: Path, *words: str) -> list[dict]:
    size = len(split.split("/"))
    done = several_ranks(size, "ckpt_stages_worker.py", act, split, str(directory), *words)
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of two layers, at step 1 on disk. A restore from memory on the same ranks gave step 2."""
    directory = tmp_path_factory.mktemp("stages") / "c"
    for found in run("save", "0,1/2,3", directory):
        assert found["memory"] == [2, True]
    return directory


def copied(saved: Path, tmp_path: Path) -> Path:
    """The checkpoint on disk alone: memory belongs to the directory that it was saved in."""
    (tmp_path / "c").mkdir()
    shutil.copytree(saved / "step-1", tmp_path / "c" / "step-1")
    return tmp_path / "c"


LONG = [pytest.param(split, marks=pytest.mark.long) for split in ("0,1/2,3", "0,1,2,3", "3/0,2/1")]


@pytest.mark.long
@pytest.mark.parametrize("split", ["0/1,2,3", *LONG])
def test_stages_come_back_in_another_split_and_number_of_ranks(saved: Path, tmp_path: Path, split: str):
    for found in run("restore", split, copied(saved, tmp_path)):
        assert found == {"restored": 1, "same": True}


@pytest.mark.long
def test_a_layer_that_no_rank_has_is_an_error(saved: Path, tmp_path: Path):
    for found in run("restore", "0,1/2", copied(saved, tmp_path)):
        assert "no rank has model.l3.weight" in found["error"], found


@pytest.mark.long
def test_a_layer_that_the_checkpoint_lacks_is_an_error_on_all_ranks(saved: Path, tmp_path: Path):
    for found in run("restore", "0,1/2,3", copied(saved, tmp_path), "--more"):
        assert "the checkpoint has no model.l9.weight" in found["error"], found
