"""Retention: the newest good checkpoints, permanent ones and bad ones stay."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from ckpt_made import bare_checkpoint, flip, names_in
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.ckpt import publish
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.publish import Keep, Retention
from transom_cli.ckpt.tiers import marks
from transom_cli.errors import UsageError

keeps = st.builds(Keep, st.integers(1, 5), st.none() | st.integers(1, 30))
there = st.dictionaries(st.integers(0, 200), st.booleans(), max_size=30)  # step: good


@settings(deadline=None)
@given(keeps, there)
def test_retention_keeps_newest_good_bad_and_permanent_checkpoints(keep: Keep, steps: dict[int, bool]):
    gone = keep.doomed(steps, steps.__getitem__)
    good = sorted((step for step in steps if steps[step]), reverse=True)
    assert set(gone) <= set(good[keep.newest :])
    assert {step for step in good[keep.newest :] if keep.every is None or step % keep.every} == set(gone)
    if good:
        assert good[0] not in gone, "the last good one stays"


@settings(deadline=None)
@given(keeps, st.sets(st.integers(0, 300), max_size=60))
def test_checkpoints_kept_forever_survive_a_whole_run(keep: Keep, saved: set[int]):
    left: set[int] = set()
    for step in sorted(saved):
        left.add(step)
        left -= set(keep.doomed(left, lambda _: True))
    assert left == {s for s in saved if keep.every and s % keep.every == 0} | set(sorted(saved)[-keep.newest :])


def test_loss_that_is_no_number_does_not_delete_the_last_good_checkpoints(tmp_path: Path):
    for step, loss in ((10, 2.0), (20, 1.5), (30, 1.4), (40, math.nan), (50, math.inf), (60, math.nan)):
        marks.write_metrics(bare_checkpoint(tmp_path, step), marks.usable({"loss": loss}))
        Retention(tmp_path, Keep(2), "1.0").apply(step, "0" * 8)
    assert names_in(tmp_path) == ["step-20", "step-30", "step-50", "step-60"]
    marks.write_metrics(bare_checkpoint(tmp_path, 70), marks.usable({"loss": 1.3}))
    Retention(tmp_path, Keep(2), "1.0").apply(70, "0" * 8)
    assert names_in(tmp_path) == ["step-60", "step-70"]


def test_permanent_checkpoints_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for step in (10, 15, 20, 25, 30, 35):
        bare_checkpoint(tmp_path, step)
    flip(tmp_path / "step-35" / "__0_0.distcp", 10)
    read: list[int] = []
    real = publish.verify
    monkeypatch.setattr(publish, "verify", lambda candidate: read.append(candidate.step) or real(candidate))
    assert Retention(tmp_path, Keep(1, 10), "1.0").apply(30, "0" * 8) == [25, 15]
    assert names_in(tmp_path) == ["step-10", "step-20", "step-30", "step-35"]
    assert read == [35, 30, 25, 15]


@pytest.mark.parametrize("asked", [{"keep": 0}, {"keep": True}, {"keep": 2.0}, {"keep_every": 0}, {"keep_every": "9"}])
def test_invalid_arguments_are_refused(tmp_path: Path, asked: dict[str, object]):
    with pytest.raises(UsageError, match="must be"):
        Checkpointer({"n": 1}, tmp_path, every=1, **asked)


def test_a_trainer_that_keeps_every_third(tmp_path: Path):
    ck = Checkpointer({"n": 1}, tmp_path, every=1, keep=1, keep_every=3)
    for step in range(1, 9):
        assert ck.save(step)
        ck.wait(strict=True)
    ck.close(strict=True)
    assert names_in(tmp_path) == ["step-3", "step-6", "step-8"]


metrics = st.dictionaries(st.integers(0, 200), st.none() | st.floats(-5, 5).map(lambda x: round(x)), max_size=30)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from(("min", "max")), metrics, st.sets(st.integers(0, 200)))
def test_best_good_checkpoints_are_kept(
    newest: int, best: int, mode: str, values: dict[int, float | None], bad: set[int]
):
    gone = Keep(newest, None, best, "loss", mode).doomed(values, lambda step: step not in bad, values.__getitem__)
    rest = [values[s] for s in values if s not in gone and s not in bad and values[s] is not None]
    lost = [values[s] for s in gone if values[s] is not None]
    assert not bad & set(gone)
    for value in lost:  # at least `best` that stay are as good as each one that goes
        better = [one for one in rest if (one <= value if mode == "min" else one >= value)]
        assert len(better) >= best


def test_best_checkpoints_of_a_trainer_stay(tmp_path: Path):
    ck = Checkpointer({"n": 1}, tmp_path, every=1, keep=1, keep_best=2, monitor="score", mode="max")
    for step, score in enumerate((0.1, 0.9, float("nan"), 0.5, 0.2, 0.3), 1):
        assert ck.save(step, metrics={"score": score})
        ck.wait(strict=True)
    ck.close(strict=True)
    assert names_in(tmp_path) == ["step-2", "step-4", "step-6"]


def test_marked_checkpoint_is_not_deleted(tmp_path: Path):
    for step in (1, 2, 3):
        bare_checkpoint(tmp_path, step)
    marks.keep(tmp_path / "step-1")
    assert Retention(tmp_path, Keep(1), "1.0").apply(3, "0" * 8) == [2]
    marks.keep(tmp_path / "step-1", kept=False)
    assert Retention(tmp_path, Keep(1), "1.0").apply(3, "1" * 8, used=[1]) == []
    assert Retention(tmp_path, Keep(1), "1.0").apply(3, "2" * 8) == [1]


@pytest.mark.parametrize("asked", [{"keep_best": 0}, {"keep_best": "3"}, {"mode": "low"}, {"monitor": ""}])
def test_invalid_metric_arguments_are_refused(tmp_path: Path, asked: dict[str, object]):
    with pytest.raises(UsageError, match="must be"):
        Checkpointer({"n": 1}, tmp_path, every=1, **asked)
