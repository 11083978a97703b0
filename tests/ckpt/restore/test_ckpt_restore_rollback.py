"""A rolled-back training resumes from before the bad steps, not from anything that they wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_made import Training, names_in
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import BadRollbacks, NoCheckpointRestores
from transom_cli.ckpt.restore import rollback
from transom_cli.ckpt.restore.rollback import Batches, Rollback, roll_back


def become(monkeypatch: pytest.MonkeyPatch, launch: str) -> None:
    attempt, _, number = launch.rpartition(".")
    monkeypatch.setenv("TRANSOM_ATTEMPT", attempt)
    monkeypatch.setenv("TRANSOM_LAUNCH", number)


def saved(directory: Path, monkeypatch: pytest.MonkeyPatch, launch: str, steps: list[int], **how: object) -> list[str]:
    """A launch that saves at these steps; digests of the state at each."""
    become(monkeypatch, launch)
    training = Training(1)
    digests = []
    with_copies = Checkpointer(training.state, directory, every=1, keep=9, **how)  # type: ignore[arg-type]
    with_copies.restore()
    for step in steps:
        training.step()
        with_copies.save(step)
        with_copies.wait(strict=True)
        digests.append(training.digest())
    with_copies.close(strict=True)
    return digests


def test_training_resumes_before_the_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = saved(tmp_path, monkeypatch, "7.0.0", [1, 2, 3, 4])
    assert roll_back(tmp_path, Rollback("7.0.1", 2, (2, 4), "nan_loss")) == ("step-4", "step-3")
    assert roll_back(tmp_path, Rollback("7.0.1", 2, (2, 4), "nan_loss")) == ()  # again: nothing more
    assert [n for n in names_in(tmp_path) if "undone" in n] == ["step-3.undone-1", "step-4.undone-1"]

    become(monkeypatch, "7.0.1")
    again = Training(2)
    checkpointer = Checkpointer(again.state, tmp_path, every=1, keep=9)
    assert checkpointer.restore() == 2
    assert again.digest() == digests[1]
    assert [checkpointer.batch(step) for step in (1, 2, 3, 4)] == [0, 4, 5, 6]
    assert checkpointer.skipped == ((1, 3),)
    for _ in range(2):  # on other batches than before
        again.step()
    checkpointer.save(3)  # of another history: it is published, and the former one does not stand in its way
    checkpointer.close(strict=True)
    assert {"step-3", "step-3.undone-1"} <= set(names_in(tmp_path))
    third = Training(3)
    assert Checkpointer(third.state, tmp_path, every=1).restore() == 3
    assert third.digest() == again.digest() != digests[2]


def test_undone_copies_are_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, copy = tmp_path / "main", tmp_path / "copy"
    for step in (1, 2, 3):  # one after the other: while a copy is being written, the next step is not copied
        saved(main, monkeypatch, "7.0.0", [step], also={copy: 1})
    roll_back(main, Rollback("7.1.0", 1))
    become(monkeypatch, "7.1.0")
    checkpointer = Checkpointer(Training(2).state, main, every=1, also={copy: 1})
    assert checkpointer.restore() == 1
    assert checkpointer.batch(9) == 8
    checkpointer.close()
    assert "step-3.undone-1" in names_in(copy)


def test_with_nothing_left_to_go_on_from_it_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, monkeypatch, "7.0.0", [5, 6])
    roll_back(tmp_path, Rollback("7.0.1", 4))
    become(monkeypatch, "7.0.1")
    with pytest.raises(NoCheckpointRestores, match="The one checkpoint in"):
        Checkpointer(Training(2).state, tmp_path, every=1).restore()


def test_checkpoints_left_by_an_interrupted_rollback_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, monkeypatch, "7.0.0", [1, 2, 3])
    monkeypatch.setattr(rollback, "set_aside", lambda directory, setbacks: ())
    roll_back(tmp_path, Rollback("7.0.1", 1))
    become(monkeypatch, "7.0.1")
    assert Checkpointer(Training(2).state, tmp_path, every=1).restore() == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2, "setbacks": []}', '{"schema": 1, "setbacks": [{"to": 1}]}'])
def test_unreadable_rollback_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / ".setbacks").write_text(text)
    with pytest.raises(BadRollbacks, match=r"\.setbacks"):
        roll_back(tmp_path, Rollback("7.0.1", 1))
    assert (tmp_path / ".setbacks").read_text() == text
    with pytest.raises(BadRollbacks, match="cannot be read as the record of rollbacks"):
        Checkpointer(Training(1).state, tmp_path, every=1).restore()


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=6))
def test_batches_are_those_of_the_data_without_the_skipped(spans: list[tuple[int, int]]) -> None:
    """By hand: each setback strikes out what its steps had trained on."""
    left = list(range(400))
    for first, length in spans:
        del left[first - 1 : first + length]
    setbacks = [Rollback(f"7.0.{n}", 1, (first, first + length)) for n, (first, length) in enumerate(spans, 1)]
    batches = Batches(setbacks)
    assert [batches.of(step) for step in range(1, 200)] == left[:199]
    struck = [b for first, last in batches.skipped for b in range(first, last + 1)]
    assert sorted(set(range(400)) - set(left)) == struck
