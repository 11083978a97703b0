"""Buffers that differ by rank have a declared owner. Without one they are refused, also if they differ only later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ckpt_two import two_ranks

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.errors import UsageError


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    directory = tmp_path_factory.mktemp("buffers")
    done = two_ranks("ckpt_buffers_worker.py", "broadcast,declared,first,drifting,values", str(directory))
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


@pytest.mark.long
def test_training_with_buffers_that_ddp_broadcasts_continues_bit_for_bit(ran: list[dict]) -> None:
    assert [found["broadcast"]["differ"] for found in ran] == [False, True], "the ranks' buffers differ at the save"
    for found in ran:
        assert found["broadcast"]["step"] == 3
        assert found["broadcast"]["rank 0's"] and found["broadcast"]["continues"]


@pytest.mark.long
def test_buffers_declared_per_rank_come_back_to_each_rank(ran: list[dict]) -> None:
    for found in ran:
        assert found["declared"]["own"] and found["declared"]["continues"]


@pytest.mark.long
def test_buffers_declared_from_rank_0_are_rank_0s_on_all_ranks(ran: list[dict]) -> None:
    for found in ran:
        assert found["first"]["step"] == 3 and found["first"]["rank 0's"]


@pytest.mark.long
def test_buffers_that_differ_after_the_first_save_are_refused_by_name(ran: list[dict]) -> None:
    for found in ran:
        assert found["drifting"]["there"] == ["step-1"]
        assert "model.1.running_mean" in found["drifting"]["last_error"]
        (raised,) = found["drifting"]["raised"]
        assert "RanksDiffer" in raised and "model.1.running_var" in raised and "model.0.weight" not in raised
        assert "from_rank_0=[" in raised


@pytest.mark.long
def test_plain_values_that_differ_after_the_first_save_are_refused_by_name(ran: list[dict]) -> None:
    for found in ran:
        assert found["values"]["saved"][:2] == ["", ""]
        assert "note.tokens" in found["values"]["saved"][2] and "note.tokens" in found["values"]["raised"]


def test_from_rank_0_must_be_a_list_of_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from_rank_0='mean' must be a list"):
        Checkpointer({"mean": 0}, tmp_path / "c", every=1, from_rank_0="mean")
