"""Published figures that the simulator reproduces: `make bench-published` prints all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from simulate_published import (
    IMPOSSIBLE,
    Point,
    airesim_closed_form,
    gemini,
    llama,
    missing,
    rsc,
    transom_headline,
    unicron,
    young,
)


@pytest.mark.parametrize("make", [gemini, airesim_closed_form, unicron])
def test_published_figure_is_reproduced(make: object) -> None:
    point = make()  # type: ignore[operator]
    assert point.verdict == "reproduced", point


def test_time_lost_follows_young_and_daly_around_the_optimum() -> None:
    short, best, long = young()
    assert [one.verdict for one in (short, best, long)] == ["reproduced"] * 3
    assert best.ours is not None and short.ours is not None and long.ours is not None
    assert best.ours < short.ours and best.ours < long.ours


def test_figure_without_published_inputs_is_not_claimed() -> None:
    assert {point.verdict for point in missing()} == {IMPOSSIBLE}
    assert Point("x", "y", 1.0, 1.2, 0.1, "").verdict == "differs"


@pytest.mark.long
@pytest.mark.parametrize(("minutes", "published"), [(60, 0.70), (5, 0.93)])
def test_effective_time_of_the_research_cluster_is_reproduced(minutes: int, published: float) -> None:
    assert rsc(minutes, published).verdict == "reproduced"


@pytest.mark.long
@pytest.mark.parametrize("value", ["interruptions", "effective"])
def test_training_of_54_days_is_reproduced(value: str) -> None:
    assert llama(value).verdict == "reproduced"


@pytest.mark.long
def test_transom_shortens_the_training_of_a_large_model() -> None:
    by_hand, slower, without, ours = transom_headline().values()
    assert slower < by_hand < without < ours
