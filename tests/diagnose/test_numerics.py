"""A loss that goes wrong: found, dated, and told from healthy ones."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.diagnose import numerics as nu
from transom_cli.diagnose.clue import Category, Trouble
from transom_cli.diagnose.numerics import Found, NumericsState, Over, last_step_before, watch

News = list[Found | Over]


def play(
    losses: list[float],
    state: NumericsState | None = None,
    first: int = 0,
    norms: list[float] | None = None,
    scales: list[float] | None = None,
) -> tuple[NumericsState, News]:
    state, news = state or NumericsState(), []
    for i, loss in enumerate(losses):
        state, found = watch(state, first + i, loss, norms[i] if norms else None, scales[i] if scales else None)
        news += found
    return state, news


def healthy(count: int, seed: int = 0, level: float = 2.0, sigma: float = 0.05) -> list[float]:
    random = Random(seed)
    return [random.gauss(level, sigma) for _ in range(count)]


@pytest.mark.parametrize(
    ("bad", "trouble"), [(math.nan, Trouble.NAN), (math.inf, Trouble.INF), (-math.inf, Trouble.INF)]
)
def test_a_loss_that_stays_not_finite(bad: float, trouble: Trouble) -> None:
    state, news = play([*healthy(50), *[bad] * 5])
    (found,) = news
    assert isinstance(found, Found)
    assert (found.trouble, found.since, found.good, found.step) == (trouble, 50, 49, 52)
    assert last_step_before(found) == 48, "the loss of step 49 is of the weights that step 48 left"
    assert found.clue.category is Category.NUMERIC_DIVERGENCE and found.clue.source == "loss"
    assert "since step 50" in found.words
    _, after = play(healthy(1), state, 55)
    assert after == [Over(55, found)]


def test_from_the_first_step_on_no_step_is_good() -> None:
    _, (found,) = play([math.nan] * 3)
    assert isinstance(found, Found) and last_step_before(found) == -1


def test_single_skipped_step_is_ignored() -> None:
    losses = healthy(400)
    losses[50:400:7] = [math.nan] * len(losses[50:400:7])
    losses[53:400:70] = [40.0] * len(losses[53:400:70])
    assert play(losses)[1] == []


def test_spike_needs_several_samples() -> None:
    state, news = play([*healthy(100), *healthy(10, 1, 4.0)])
    (found,) = news
    assert isinstance(found, Found)
    assert (found.trouble, found.since, found.good, found.step) == (Trouble.SPIKE, 100, 99, 103)
    assert found.usual == pytest.approx(2.0, abs=0.05)
    assert [type(x) for x in play(healthy(5), state, 110)[1]] == [Over]


def test_larger_jump_is_reported_sooner() -> None:
    _, (found,) = play([*healthy(100), 20.0, 21.0])
    assert isinstance(found, Found) and (found.trouble, found.step) == (Trouble.SPIKE, 101)


def test_a_new_level_stays_a_finding_and_a_spike_above_it_is_seen_too() -> None:
    state, news = play([*healthy(100), *healthy(2 * nu.WINDOW, 1, 4.0)])
    assert [x.trouble for x in news if isinstance(x, Found)] == [Trouble.SPIKE]
    assert len(news) == 1, "it has not come back"
    assert state.loss.bad == () and state.loss.good[-1] > 3


def test_gradients_that_explode() -> None:
    norms = [1 + 0.1 * math.sin(i) for i in range(100)] + [500.0, 800.0, 600.0]
    _, news = play(healthy(103), norms=norms)
    (found,) = news
    assert isinstance(found, Found) and (found.trouble, found.since) == (Trouble.EXPLODING, 100)


def test_norms_that_are_infinite_while_a_scaler_comes_down_are_usual() -> None:
    fine = [1 + 0.01 * i for i in range(40)]
    assert play(healthy(55), norms=[*[math.inf] * 15, *fine])[1] == []
    infinite = [*fine, *[math.inf, math.nan] * 10]
    _, (found,) = play(healthy(60), norms=infinite)
    assert isinstance(found, Found) and (found.trouble, found.since) == (Trouble.NORM, 40)


def test_stale_norm_counts_once() -> None:
    norms = [1 + 0.1 * math.sin(i) for i in range(100)] + [500.0] * 10
    assert play(healthy(110), norms=norms)[1] == []


def test_a_stuck_loss() -> None:
    stuck = 2.0 + 1 / 3
    _, news = play([*healthy(20), *[stuck] * (nu.STUCK + 1), *healthy(3)])
    assert [type(x) for x in news] == [Found, Over]
    assert isinstance(news[0], Found) and news[0].trouble is Trouble.STUCK and news[0].since == 20


def test_a_rounded_loss_may_repeat_for_longer() -> None:
    _, news = play([1.5] * (nu.STUCK * nu.ROUNDED))
    assert news == []
    _, news = play([1.5] * (nu.STUCK * nu.ROUNDED + 1))
    assert len(news) == 1


def test_a_scale_that_fell_to_its_minimum() -> None:
    scales = [65536.0 / 2**i for i in range(16)] + [1.0] * 10
    _, (found,) = play(healthy(26), scales=scales)
    assert isinstance(found, Found) and (found.trouble, found.since) == (Trouble.SCALE, 16)
    assert play(healthy(50), scales=[1.0] * 50)[1] == [], "a scale that is always 1 is not used"


def test_rollback_keeps_the_learned_values() -> None:
    state, news = play([*healthy(100), *[math.nan] * 3])
    assert len(news) == 1
    state, news = play(healthy(40, 7), state, 60)
    assert [type(x) for x in news] == [Over]
    _, news = play([50.0, 60.0], state, 100)
    assert isinstance(news[0], Found) and news[0].good == 99


@given(
    level=st.floats(-100, 100), sigma=st.floats(1e-6, 50), seed=st.integers(0, 2**32), slope=st.floats(-0.02, 0.0),
    period=st.integers(50, 1000), swing=st.floats(0, 20),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_healthy_losses_raise_nothing(
    level: float, sigma: float, seed: int, slope: float, period: int, swing: float
) -> None:
    """Noise, slow waves, a fall, around any level."""
    random = Random(seed)
    losses = [
        level + slope * i + swing * sigma * math.sin(2 * math.pi * i / period) + random.gauss(0, sigma)
        for i in range(300)
    ]
    assert play(losses)[1] == []


@given(st.lists(st.floats(width=32) | st.just(math.nan), max_size=60), st.integers(0, 50))
def test_any_losses_in_any_order_are_answered_and_memory_does_not_grow(losses: list[float], back: int) -> None:
    state = NumericsState()
    for i, loss in enumerate(losses):
        state, news = watch(state, i if i != back else 0, loss, loss, loss)
        for one in news:
            found = one if isinstance(one, Found) else one.found
            assert found.words and -1 <= last_step_before(found) <= max(found.step, i)
        assert max(len(state.loss.good), len(state.loss.bad), len(state.norm.bad)) <= nu.WINDOW
        assert len({f.trouble for f in state.standing}) == len(state.standing)
