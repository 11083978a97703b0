"""Which steps are saved, and which saves become durable."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.schedule import NEVER, PersistRule
from transom_cli.errors import UsageError


def test_steps_that_are_multiples_of_the_interval_are_saved(tmp_path: Path):
    ck = Checkpointer({"n": 1}, tmp_path, every=3, keep=9)
    assert ck.every == 3
    assert [step for step in range(2, 11) if ck.step(step)] == [3, 6, 9]
    ck.close(strict=True)


@pytest.mark.parametrize("every", ["often", 1.5, 0, -1])
def test_invalid_interval_is_refused(every, tmp_path: Path):
    with pytest.raises(UsageError, match="must be"):
        Checkpointer({"n": 1}, tmp_path, every=every)


def test_number_of_saves_until_one_is_durable():
    now = [0.0]
    tenth, minutes = PersistRule(10, time.monotonic), PersistRule("10m", lambda: now[0])
    assert (tenth.left(), minutes.left()) == ((10, 0.0), (None, 600.0))
    assert (tenth.words, minutes.words) == ("one of 10 is made durable", "the first after 10 min is made durable")
    for rule in (tenth, minutes):
        assert rule.due(False) is False
    now[0] = 200.0
    assert (tenth.left(), minutes.left()) == ((9, 0.0), (None, 400.0))
    for rule in (tenth, minutes):
        rule.hurry()
    assert (tenth.left(), minutes.left()) == ((1, 0.0), (None, 0.0))
    assert tenth.due(False) and tenth.left() == (10, 0.0)


def test_snapshots_in_memory_alone_become_durable_only_when_that_is_urgent():
    rule = PersistRule(NEVER, time.monotonic)
    assert rule.words == "in memory alone"
    assert not rule.due(False) and rule.due(True)
    rule.hurry()
    assert rule.left() == (1, 0.0) and rule.due(False) and not rule.due(False)
