"""A rise of step times that stays: seen, and nothing else taken for one."""

from __future__ import annotations

import math
from itertools import combinations, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.diagnose.slowness import changepoint as cp

LIMITS = cp.Limits()
Events = list[cp.Slower | cp.AsBefore]


def play(samples: list[float], series: cp.Series | None = None, first: int = 0) -> tuple[cp.Series, Events]:
    series, events = series or cp.Series(), []
    for step, seconds in enumerate(samples, first):
        series, found = cp.watch(series, step, seconds, LIMITS)
        events += found
    return series, events


def noisy(seed: int, count: int, level: float = 1.0, sigma: float = 0.05) -> list[float]:
    random = Random(seed)
    return [level * math.exp(random.gauss(0, sigma)) for _ in range(count)]


@pytest.mark.parametrize(("ratio", "soon"), [(2.0, 20), (1.2, 40), (1.1, 160)])
def test_rise_is_reported_once_with_size_and_start(ratio: float, soon: int) -> None:
    for seed in range(5):
        _, events = play(noisy(seed, 600) + noisy(seed + 99, 400, ratio))
        (found,) = events
        assert isinstance(found, cp.Slower)
        assert 600 <= found.step <= 600 + soon
        assert abs(found.since - 600) <= 64
        assert found.ratio == pytest.approx(ratio, rel=0.05)
        assert found.chance <= LIMITS.chance


def test_end_is_reported_and_the_next_rise_of_that_length_is_not() -> None:
    samples = noisy(1, 400) + noisy(2, 60, 1.5) + noisy(3, 400)
    series, events = play(samples)
    assert [type(e) for e in events] == [cp.Slower, cp.AsBefore]
    assert events[1].since == events[0].since
    series, again = play(noisy(4, 60, 1.5) + noisy(5, 300), series, len(samples))
    assert again == []
    _, longer = play(noisy(6, 200, 1.5), series, len(samples) + 360)
    assert [type(e) for e in longer] == [cp.Slower]


def test_restart_repeats_only_reports_that_still_hold() -> None:
    series, events = play(noisy(1, 400) + noisy(2, 100, 1.5))
    assert len(events) == 1
    _, still = play(noisy(3, 100, 1.5), cp.restarted(series), 450)
    assert [type(e) for e in still] == [cp.Slower] and still[0].before == events[0].before
    again, gone = play(noisy(4, 300), cp.restarted(series), 450)
    assert gone == [] and again.slow is None


def test_further_slowdown_is_reported_again() -> None:
    _, events = play(noisy(1, 400) + noisy(2, 400, 1.5) + noisy(3, 200, 3.0))
    assert [type(e) for e in events] == [cp.Slower, cp.Slower]
    assert events[1].before == pytest.approx(1.5, rel=0.1)


@given(
    every=st.integers(2, 40), times=st.floats(1.0, 100.0), sigma=st.floats(0.0, 0.3), seed=st.integers(0, 2**32),
    level=st.floats(1e-3, 1e3),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_periodic_long_steps_are_no_slowness(every: int, times: float, sigma: float, seed: int, level: float) -> None:
    samples = [x * (times if i % every == 0 else 1) for i, x in enumerate(noisy(seed, 400, level, sigma))]
    assert play(samples)[1] == []


@given(st.lists(st.floats(0.001, 1000.0), min_size=10, max_size=10), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_first_steps_and_a_restarts_are_passed_over(first: list[float], seed: int) -> None:
    series, events = play(first + noisy(seed, 300))
    assert events == []
    series, events = play([5 * x for x in first] + noisy(seed + 1, 300), cp.restarted(series), 200)
    assert events == []
    _, events = play([9.0] * cp.SETTLE + noisy(seed + 2, 100), series, 400)  # set back: the steps come again
    assert events == []


@given(st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf]))
def test_invalid_duration_changes_nothing(bad: float) -> None:
    series, _ = play([1.0] * 20)
    assert cp.watch(series, 99, bad, LIMITS) == (series, ())


def test_getting_faster_is_no_slowness() -> None:
    assert play(noisy(1, 400, 2.0) + noisy(2, 400, 1.0))[1] == []


def test_memory_does_not_grow() -> None:
    series, _ = play(noisy(1, 4 * 4 * 4 * (cp.BEFORE + 2 * max(cp.NEWEST))))
    for level in series.levels:
        assert len(level.blocks) == cp.BEFORE + max(cp.NEWEST) and len(level.waiting) < cp.GROUP


@pytest.mark.parametrize(("w", "n"), [(2, 5), (3, 4), (4, 4)])
def test_the_chance_is_what_counting_all_orders_gives(w: int, n: int) -> None:
    """Every choice of the newest among w + n different values is equally likely when nothing has changed."""
    orders = list(combinations(range(w + n), w))
    for j in range(n + 1):
        as_extreme = sum(sum(x > min(newest) for x in set(range(w + n)) - set(newest)) <= j for newest in orders)
        assert as_extreme / len(orders) == pytest.approx(math.comb(w + j, w) / math.comb(n + w, w))


def test_many_series_share_one_rate() -> None:
    alone, many = cp.Limits(), cp.Limits(series=1000)
    assert many.chance == pytest.approx(alone.chance / 1000)
    tests = sum(len(cp.NEWEST) / cp.GROUP**n for n in range(1, cp.LEVELS + 1))
    assert alone.chance * tests == pytest.approx(1 / cp.RATE)


def test_a_thousand_series_do_not_alarm_where_nothing_changes() -> None:
    limits = cp.Limits(series=50)
    for seed in range(50):
        series = cp.Series()
        for step, seconds in enumerate(islice(noisy(seed, 300, sigma=0.3), 300)):
            series, found = cp.watch(series, step, seconds, limits)
            assert found == ()
