"""What is drawn keeps to the drawing, and of a long run no more is drawn than can be seen."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.goodput import NS, Attempt, History, Kind, Span
from transom_cli.core.goodput.account import Loss
from transom_cli.core.goodput.model import Launch, Sample
from transom_cli.view.report.charts import COLUMNS, MARKS, Scale, losses, step_time_plot, steps
from transom_cli.view.report.model import Paragraph, Plot
from transom_cli.view.report.timeline import EXACT, _columns

BEGIN = 1_795_000_000.0


def history(*launches: tuple[tuple[float, int], ...]) -> History:
    """Of one attempt: for each launch (seconds after the beginning, step)."""
    made = [
        Launch(
            n, round((BEGIN + points[0][0]) * NS), tuple(Sample(round((BEGIN + at) * NS), step) for at, step in points)
        )
        for n, points in enumerate(launches)
    ]
    return History(
        round(BEGIN * NS), round((BEGIN + 1000) * NS), True, False, True, (), (Attempt("7.0", launches=tuple(made)),)
    )


SCALE = Scale.over(BEGIN, BEGIN + 1000)


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.e-]+) ([\d.e-]+)", path)]


def test_steps_that_were_lost_are_drawn_apart_up_to_where_they_had_been() -> None:
    plot = steps(history(((100, 0), (200, 100)), ((300, 50), (500, 150))), SCALE)
    assert isinstance(plot, Plot)
    first, again = plot.traces
    assert (first.tone, again.tone) == ("productive", "redone")
    assert [x for x, _ in points(again.path)] == [300, 400]  # step 100 is reached again half way
    assert [x for x, _ in points(first.path)] == [100, 200, 400, 500]
    assert "with repeated steps: 1" in plot.note


def test_a_run_without_a_step_is_said_to_have_none() -> None:
    assert isinstance(steps(history(), SCALE), Paragraph) and isinstance(step_time_plot(history(), SCALE), Paragraph)


def test_the_time_of_a_step_is_taken_within_a_launch() -> None:
    plot = step_time_plot(history(((0, 0), (100, 50)), ((900, 50), (910, 60))), SCALE)
    assert isinstance(plot, Plot) and "median 1.5 s" in plot.note


def test_many_points_become_a_median_and_a_band() -> None:
    many = tuple((n / 10, n if n % 2 else n + 0) for n in range(9000))
    plot = step_time_plot(history(many), SCALE)
    assert isinstance(plot, Plot)
    assert [trace.tone for trace in plot.traces] == ["band", "line"]
    assert len(points(plot.traces[1].path)) <= COLUMNS and len(points(plot.traces[0].path)) <= 2 * COLUMNS


def test_a_loss_that_is_no_number_is_counted_and_not_drawn() -> None:
    told = [Loss("7.0", 0, BEGIN + n, n, float("nan") if n == 5 else 3.0 - n / 10) for n in range(10)]
    plot = losses(told, (), SCALE)
    assert isinstance(plot, Plot) and plot.note == "1 value left out: not a finite number."
    none = losses((), (Loss("7.0", 0, 0.0, 9, 2.5),), SCALE)
    assert isinstance(none, Paragraph) and none.text.endswith("attempt 7.0: 2.5 at step 9.")


@given(st.lists(st.tuples(st.floats(-1e3, 2e3), st.integers(0, 10**7)), min_size=1, max_size=30))
def test_no_point_lies_outside(samples: list[tuple[float, int]]) -> None:
    for plot in (steps(history(tuple(sorted(samples))), SCALE), step_time_plot(history(tuple(sorted(samples))), SCALE)):
        for trace in plot.traces if isinstance(plot, Plot) else ():
            assert all(0 <= x <= 1001 and 0 <= y <= 1000 for x, y in points(trace.path))


@given(st.floats(1.0, 4e9), st.floats(0.0, 4e8))
def test_an_axis_has_few_words_in_order(begin: float, length: float) -> None:
    marks = Scale.over(begin, begin + length).axis()
    assert len(marks) <= MARKS
    assert [m.x for m in marks] == sorted(m.x for m in marks) and all(0 <= m.x <= 100 for m in marks)


@given(st.lists(st.tuples(st.sampled_from(list(Kind)), st.integers(10**9, 10**12)), min_size=1, max_size=2 * EXACT))
def test_columns_are_full_and_keep_the_sums(parts: list[tuple[Kind, int]]) -> None:
    spans, at = [], round(BEGIN * NS)
    for kind, length in parts:
        spans.append(Span(at, at + length, kind))
        at += length
    whole = at - round(BEGIN * NS)
    bars = _columns(spans, Scale.over(BEGIN, at / NS))
    for kind in Kind:
        drawn = sum(bar.width * bar.height for bar in bars if bar.tone == kind.value) / 1e4
        meant = sum(length for one, length in parts if one is kind) / whole
        assert drawn == pytest.approx(meant, abs=0.01)
