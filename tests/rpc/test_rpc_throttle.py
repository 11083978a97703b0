"""A shared rate: never more than it allows in any stretch of time, and all of it for who always asks."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.rpc.throttle import Throttle

RATE, MOST = 100.0, 50
CLOSE = 1e-6


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


turns = st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, MOST)), max_size=40)  # seconds that pass, then bytes


@given(turns)
def test_never_more_than_the_rate_and_a_burst_in_any_stretch_of_time(asked: list[tuple[float, int]]) -> None:
    clock = Clock()
    throttle = Throttle(RATE, MOST, clock)
    went = []  # when, and how many
    for passed, count in asked:
        clock.now += passed
        went.append((clock.now + throttle.take(count), count))
    for first, last in combinations_with_replacement(range(len(went)), 2):
        seconds = went[last][0] - went[first][0]
        assert sum(count for _, count in went[first : last + 1]) <= RATE * seconds + MOST + CLOSE


@given(st.lists(st.integers(1, MOST), min_size=1, max_size=40))
def test_who_always_asks_gets_the_whole_rate(counts: list[int]) -> None:
    clock = Clock()
    throttle = Throttle(RATE, MOST, clock)
    began = clock.now
    for count in counts:
        clock.now += throttle.take(count)
    assert clock.now - began == pytest.approx(max(0, sum(counts) - MOST) / RATE, abs=CLOSE)


@given(st.lists(st.integers(1, MOST), min_size=2, max_size=20))
def test_who_asks_first_goes_first(counts: list[int]) -> None:
    throttle = Throttle(RATE, MOST, Clock())
    waits = [throttle.take(count) for count in counts]
    assert waits == sorted(waits)


def test_a_rest_is_worth_one_burst_and_no_more() -> None:
    clock = Clock()
    throttle = Throttle(RATE, MOST, clock)
    clock.now += 3600
    assert throttle.take(MOST) == 0
    assert throttle.take(MOST) == pytest.approx(MOST / RATE)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Throttle(rate)


def test_more_than_a_burst_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="51 bytes at once, and 50 are allowed"):
        Throttle(RATE, MOST).take(MOST + 1)
