"""A save that not all ranks call ends with an error that names the missing ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ckpt_two import several_ranks

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.errors import UsageError


@pytest.mark.parametrize("which", ["first", pytest.param("later", marks=pytest.mark.long)])
def test_save_that_one_rank_does_not_call_names_it_in_time(which: str, tmp_path: Path) -> None:
    """With `first`, the processes end by themselves as well: no thread waits on."""
    done = several_ranks(3, "ckpt_missing_worker.py", which, str(tmp_path / "c"))
    found = [json.loads(out.splitlines()[-1]) for out, _ in done]
    assert found[1]["raised"] == ""
    for rank in (0, 2):
        assert "RanksMissing: Rank 1 has not called save()" in found[rank]["raised"], found
        assert "4 s" in found[rank]["raised"] and 3 < found[rank]["seconds"] < 60


def test_patience_must_be_above_0(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="patience=0 must be"):
        Checkpointer({"a": 1}, tmp_path / "c", every=1, patience=0)
