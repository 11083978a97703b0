"""The goodput along the time is the account's own at each moment; step_times are of steps that were made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.goodput import Kind, Span
from transom_cli.core.goodput.account import goodput_series, step_times
from transom_cli.core.goodput.model import NS, Launch, Sample

kinds = st.sampled_from((Kind.PRODUCTIVE, Kind.RESTART, Kind.REDONE))


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(1, 9), kinds), min_size=1, max_size=8), st.integers(1, 12))
def test_each_point_is_the_share_of_what_was_by_then(begin: int, found: list[tuple[int, Kind]], points: int) -> None:
    seconds = [kind is Kind.PRODUCTIVE for length, kind in found for _ in range(length)]
    spans, at = [], begin
    for length, kind in found:
        spans.append(Span(at * NS, (at + length) * NS, kind))
        at += length
    drawn = goodput_series(spans, points)
    assert len(drawn) == points and drawn[-1] == pytest.approx((at, sum(seconds) / len(seconds)))
    for moment, share in drawn:
        passed = moment - begin
        whole = int(passed)
        part = (passed - whole) * seconds[whole] if whole < len(seconds) else 0.0
        assert share == pytest.approx((sum(seconds[:whole]) + part) / passed)


def test_where_no_time_has_passed_there_is_no_share() -> None:
    assert goodput_series([], 10) == goodput_series([Span(5, 5, Kind.QUEUE)], 10) == []


def test_a_pace_is_reported_where_steps_were_made() -> None:
    samples = (Sample(0, 1), Sample(10 * NS, 6), Sample(20 * NS, 6), Sample(21 * NS, 7))
    assert step_times(Launch(0, 0, samples)) == [(5.0, 2.0), (20.5, 1.0)]
