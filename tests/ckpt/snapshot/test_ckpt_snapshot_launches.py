"""Which start of a trainer the memory is for, whatever the clock says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from ckpt_memory_holders import abandon, end_holder
from ckpt_memory_made import by_hand, launch

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.snapshot.session import Session
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.rpc.verbs import Call


def test_numbers_decide_in_any_order_of_arrival() -> None:
    store = Store("/c", "token")
    store.join(launch(9), 0, False)
    store.join(launch(10), 0, False)
    for older in (9, 2):
        with pytest.raises(TakenOver, match=r"7\.0\.10 has taken over"):
            store.join(launch(older), 0, False)
    assert store.launch == launch(10)


def test_without_numbers_the_last_start_counts_and_one_before_never_again() -> None:
    store = Store("/c", "token")
    for name in ("a", "bb", "ccc"):
        store.join(by_hand(name), 0, False)
    for former in ("a", "bb"):
        with pytest.raises(TakenOver):
            store.join(by_hand(former), 1, False)
    store.join(by_hand("ccc"), 1, False)
    assert store.launch == by_hand("ccc")


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        (None, "launch is None"),
        ([], "launch is []"),
        ({}, "attempt is missing"),
        ({"attempt": 1, "token": ""}, "attempt is 1, not str"),
        ({"attempt": "", "token": "", "more": 1}, "['more'] are unknown"),
    ],
)
def test_what_is_no_launch_is_refused(launch: object, why: str) -> None:
    request = {"launch": launch, "directory": "/c", "token": "t", "node": "n", "key": ""}
    with pytest.raises(ValueError, match=re.escape(why)):
        Session(None).answer(Call("listen", request))  # type: ignore[arg-type]


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set back between a training's saves and before each start, which Slurm has not numbered."""
    real, now = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + now[0]) * 1e9))
    directory, want = tmp_path / "c", 0
    for _ in range(4):
        now[0] -= 86_400.0
        held = {"weights": torch.full((100,), -1)}
        trainer = Checkpointer(held, directory, every=1, persist=2)
        assert (trainer.restore() or 0) == want
        assert not want or bool((held["weights"] == want).all())
        for jump in (3600.0, -7200.0, 600.0):
            now[0] += jump
            want += 1
            held["weights"].fill_(want)
            trainer.save(want)
        trainer.wait(strict=True)
        abandon(trainer)
    end_holder(directory)
