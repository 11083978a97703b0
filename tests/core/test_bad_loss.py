"""A checkpoint counts as good only if a later good loss was computed with its weights."""

from __future__ import annotations

import pytest

from transom_cli.core.bad_loss import BadLoss, bad_resume


@pytest.mark.parametrize(
    ("step", "mark"),
    [
        (39, ""),
        (40, "may be bad: NaN loss at step 43"),
        (42, "may be bad: NaN loss at step 43"),
        (43, "after NaN loss at step 43"),
        (1200, "after NaN loss at step 43"),
    ],
)
def test_checkpoint_is_good_if_the_next_loss_was_good(step: int, mark: str) -> None:
    assert BadLoss(43, 40).mark(step) == mark


def test_nothing_is_proven_if_no_good_loss_was_seen() -> None:
    assert BadLoss(7).proven == -1 and BadLoss(7).mark(0)


def test_good_loss_of_an_earlier_launch_proves_nothing_beyond_the_bad_one() -> None:
    assert BadLoss(65, 100).proven == 64


def test_resume_from_a_checkpoint_after_the_bad_loss_is_bad_and_names_the_last_good_one() -> None:
    found = bad_resume(BadLoss(41, 40), 50, 30)
    assert found is not None and found.instead == 30
    assert found.words.startswith("the loss is NaN since step 41: checkpoint 50 was saved after that, and 30 ")
    assert found.words.endswith(" is the newest from before it")
    unclear = bad_resume(BadLoss(41, 40), 40, -1)
    assert unclear is not None and unclear.words.endswith(
        "checkpoint 40 is not known to be from before that, and none is from before it"
    )


@pytest.mark.parametrize(("loss", "newest"), [(None, 50), (BadLoss(41, 40), 39), (BadLoss(41, 40), -1)])
def test_other_resumes_are_fine(loss: BadLoss | None, newest: int) -> None:
    assert bad_resume(loss, newest, newest) is None
