"""Values that differ between ranks are never saved from one rank silently. Real gloo ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ckpt_two import several_ranks
from torch import nn

from transom_cli.ckpt import WorldSizeChanged
from transom_cli.ckpt.checkpointer import Checkpointer

SCENARIOS = ("experts", "declared", "zero", "shapes", "values", "alike", "signs", "buffers", "later")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict], list[str]]:
    """The directory, and of each rank what it found and its stderr."""
    directory = tmp_path_factory.mktemp("differing")
    done = several_ranks(2, "ckpt_differing_worker.py", ",".join(SCENARIOS), str(directory))
    return directory, [json.loads(out.splitlines()[-1]) for out, _ in done], [err for _, err in done]


def _refused(found: dict, *names: str, saves: int = 2) -> None:
    """Each save raises on this rank and names the values; nothing is published."""
    assert len(found["raised"]) == saves
    for words in found["raised"]:
        assert all(name in words for name in names), words
        assert "per_rank=" in words
    assert found["there"] == []
    assert found["last_error"]


def test_parameters_that_differ_by_rank_are_refused_by_name_on_every_rank(ran):
    for found in ran[1]:
        _refused(found["experts"], "model.expert.weight", "model.expert.bias", "rank 1")
        assert all("router" not in words for words in found["experts"]["raised"])


def test_optimizer_state_that_differs_by_rank_is_refused_by_name(ran):
    for found in ran[1]:
        _refused(found["zero"], "optim.state.weight.exp_avg")
        assert all("exp_avg_sq" not in words for words in found["zero"]["raised"])


def test_tensors_of_another_shape_on_each_rank_are_refused_by_name(ran):
    for found in ran[1]:
        _refused(found["shapes"], "part")


def test_plain_values_that_differ_by_rank_are_refused_by_name(ran):
    for found in ran[1]:
        _refused(found["values"], "note.tokens")


def test_bits_are_compared_and_not_numbers(ran):
    for found in ran[1]:
        _refused(found["signs"], "held")
        assert found["alike"] == {"raised": [], "there": ["step-1", "step-2"], "last_error": ""}


def test_values_declared_per_rank_come_back_to_each_rank_as_its_own(ran):
    for rank, of_rank in enumerate(ran[1]):
        found = of_rank["declared"]
        assert found["raised"] == []
        assert (found["restored"], found["same"]) == (2, True)
        assert found["own"] == [float(rank)] * 3


def test_values_declared_per_rank_are_refused_by_another_number_of_ranks(ran):
    model = nn.Module()
    model.router, model.expert = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state = {"model": model, "optim": optimizer, "own": torch.zeros(3)}
    with pytest.raises(WorldSizeChanged, match=r"model\.expert"):
        Checkpointer(state, ran[0] / "declared", every=1, reshard=True).restore()


@pytest.mark.parametrize("given", ["broadcast", "inner"])
def test_broadcast_buffers_are_saved_from_rank_0_with_one_warning(ran, given: str):
    expected = {"raised": [], "there": ["step-1", "step-2"], "last_error": "", "rank 0's": True}
    for found in ran[1]:
        assert found["buffers"][given] == expected
    said = [line for line in ran[2][0].splitlines() if "broadcast_buffers=True" in line and "rank 0" in line]
    assert len(said) == 2, "once for each of the two Checkpointers"
    assert "model.1.running_mean" in said[0]


def test_differing_buffers_without_broadcast_are_refused(ran):
    for found in ran[1]:
        _refused(found["buffers"]["local"], "model.1.running_mean", "model.1.running_var")


def test_ranks_are_compared_again_when_the_state_changes_its_shape_and_after_a_restore(ran):
    for of_rank in ran[1]:
        found = of_rank["later"]
        assert [words.partition(":")[0] for words in found["raised"]] == ["step 2", "step 3"]
        assert "more" in found["raised"][0]
        assert "held" in found["raised"][1]
        assert (found["restored"], found["there"]) == (1, ["step-1"])


@pytest.mark.long
def test_replicas_of_shards_are_compared(tmp_path: Path):
    done = several_ranks(4, "ckpt_differing_worker.py", "hsdp", str(tmp_path))
    for out, _ in done:
        found = json.loads(out.splitlines()[-1])["hsdp"]
        assert found["alike"] == {"raised": [], "there": ["step-1", "step-2"], "last_error": ""}
        assert len(found["astray"]["raised"]) == 2
        assert all("model.1.weight" in words and "model.0" not in words for words in found["astray"]["raised"])
        assert found["astray"]["there"] == []


@pytest.mark.long
def test_replicas_that_differ_after_a_restore_are_a_doubt_for_the_launcher_and_the_repetition_is_reported(
    tmp_path: Path,
):
    """Values that no optimizer's step changes are the trainer's own matter."""
    digests = set()
    for out, _ in several_ranks(3, "ckpt_differing_worker.py", "doubtful", str(tmp_path)):
        found = json.loads(out.splitlines()[-1])["doubtful"]
        assert "note.tokens" in found["plain"]["raised"] and found["plain"]["record"] == {}
        assert "model.weight" in found["weight"]["raised"]
        (event,) = found["weight"]["record"]["events"]
        assert (event["ranks"], event["majority"], event["step"], event["clean"]) == ([1], True, 3, 2)
        assert event["digests"][0] == event["digests"][2] != event["digests"][1]
        assert found["repeated"]["raised"] == ""
        digests.add((event["digests"][0], found["repeated"]["record"]["repeated"]["digest"]))
    ((first, again),) = digests
    assert first == again


def test_trainer_that_does_not_catch_the_refusal_ends_with_do_not_restart():
    program = "from transom_cli.ckpt import RanksDiffer; raise RanksDiffer('2 values differ')"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 93
