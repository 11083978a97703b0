"""Steps, the time of a step and the loss, over the time of a run. Pure.

Of a long run no more points are drawn than can be seen: of a stretch that falls into one column the median, and the
lowest and highest as a band. The last sample of each launch and each place where lost steps end always stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from transom_cli.core.goodput import NS, History
from transom_cli.core.goodput.curves import Loss, paces
from transom_cli.core.goodput.shapes import Launch
from transom_cli.plural import several
from transom_cli.report.scale import Scale
from transom_cli.report.shapes import Plot, Trace, Words
from transom_cli.ui.words import count, span

COLUMNS = 400
_UNITS = 1000.0
_HEADROOM, _ABOVE = 1.05, 1.25  # of steps, and of the time of a step
_RARE = 0.99  # of step times, those above are cut off at the top
_NEAR = 2  # columns: with more than that between them, two points are not joined
Point = tuple[float, float]  # seconds, value


@dataclass(frozen=True)
class Range:
    """The values that the lower and the upper edge of a drawing stand for."""

    low: float
    high: float

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(_UNITS * (1 - min(1.0, max(0.0, share))), 1)


# --- steps ---


def steps(history: History, scale: Scale) -> Plot | Words:
    """First-time steps and those that had been done before, in tones of their own."""
    launches = [one for attempt in history.attempts for one in attempt.launches if one.samples]
    if not launches:
        return Words("Steps: not recorded. No step of this run was seen.", "dim")
    highest = max(s.step for one in launches for s in one.samples)
    values = Range(0.0, max(highest * _HEADROOM, 1.0))
    first: list[str] = []
    again: list[str] = []
    newest = -1
    for one in launches:
        points = _thinned(one, scale, newest)
        again.append(_path([p for p in points if p[1] <= newest], scale, values))
        first.append(_path([p for p in points if p[1] >= newest], scale, values))
        newest = max(newest, one.samples[-1].step)
    traces = [Trace(" ".join(filter(None, first)), "productive", "steps, done for the first time")]
    if any(again):
        traces.append(Trace(" ".join(filter(None, again)), "redone", "steps that had been done before"))
    stretches = sum(map(bool, again))
    told = f"From step {count(launches[0].samples[0].step)} to {count(highest)}, launches: {count(len(launches))}"
    about = f"{told}; of these, with steps that had been done before: {count(stretches)}."
    return Plot("Steps", about, count(round(values.high)), "0", tuple(traces), scale.axis(), about)


def _thinned(launch: Launch, scale: Scale, newest: int) -> list[Point]:
    """One point a column, first and last; and, between two samples, the one at which what was lost is done again."""
    kept: list[Point] = []
    column, before = -1, None
    for n, sample in enumerate(launch.samples):
        here = int(scale.at(sample.at / NS) * COLUMNS / 100)
        if before is not None and before.step < newest < sample.step:
            part = (newest - before.step) / (sample.step - before.step)
            kept.append(((before.at + part * (sample.at - before.at)) / NS, float(newest)))
        if here != column or n == len(launch.samples) - 1 or sample.step == newest:
            kept.append((sample.at / NS, float(sample.step)))
            column = here
        before = sample
    return kept


# --- the time of a step ---


def step_times(history: History, scale: Scale) -> Plot | Words:
    pace = [paces(one) for attempt in history.attempts for one in attempt.launches]
    values = sorted(value for points in pace for _, value in points)
    if not values:
        return Words("Time of a step: not recorded. No launch has two steps whose times are known.", "dim")
    top = values[min(len(values) - 1, math.ceil(_RARE * len(values)) - 1)] * _ABOVE
    cut = sum(value > top for value in values)
    note = f"Wall time between two known steps by the steps between them; the median is {_seconds(median(values))}."
    note += f" {several(cut, 'value')} above the upper edge, up to {_seconds(values[-1])}." if cut else ""
    return _drawn("Time of a step", note, pace, Range(0.0, top), scale, _seconds)


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 100 else span(value)


# --- the loss ---


def losses(told: Sequence[Loss], last: Sequence[Loss], scale: Scale) -> Plot | Words:
    """told: along the time; last: the newest of each attempt, for where there are none."""
    curves: dict[tuple[str, int], list[Point]] = {}
    for one in told:
        if math.isfinite(one.loss):
            curves.setdefault((one.attempt, one.launch), []).append((one.at, one.loss))
    values = [value for points in curves.values() for _, value in points]
    if len(values) < 2:
        newest = "; ".join(f"attempt {o.attempt}: {o.loss:.6g} at step {count(o.step)}" for o in last[-5:])
        kept = f" The newest that agents told: {newest}." if newest else ""
        return Words(f"Loss: not recorded over time.{kept}", "dim")
    odd = len(told) - len(values)
    note = f"Left out, as no finite number: {several(odd, 'value')}." if odd else "As the trainer told it."
    return _drawn("Loss", note, list(curves.values()), _around(values), scale, lambda v: f"{v:.4g}")


def _around(values: Sequence[float]) -> Range:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-6)
    return Range(low - margin, high + margin)


# --- drawing ---


def _drawn(
    caption: str,
    note: str,
    curves: Sequence[Sequence[Point]],
    values: Range,
    scale: Scale,
    words: Callable[[float], str],
) -> Plot:
    points = sorted(point for curve in curves for point in curve)
    if len(points) <= COLUMNS:
        traces = [Trace(" ".join(_path(curve, scale, values) for curve in curves if curve), "line", caption)]
    else:
        rows = _rows(points, scale)
        lines = [_path([(at, median(told)) for at, told in row], scale, values) for row in rows]
        bands = [_band(row, scale, values) for row in rows]
        traces = [Trace(" ".join(bands), "band", "lowest to highest"), Trace(" ".join(lines), "line", "median")]
    return Plot(caption, note, words(values.high), words(values.low), tuple(traces), scale.axis(), note)


def _rows(points: Sequence[Point], scale: Scale) -> list[list[tuple[float, list[float]]]]:
    """Time and values of each column that has some; columns that are no neighbours are in rows of their own."""
    rows: list[list[tuple[float, list[float]]]] = []
    before = -_NEAR - 1
    for column, group in groupby(points, key=lambda point: int(scale.at(point[0]) * COLUMNS / 100)):
        here = list(group)
        if column - before > _NEAR:
            rows.append([])
        rows[-1].append((sum(at for at, _ in here) / len(here), [value for _, value in here]))
        before = column
    return rows


def _band(row: Sequence[tuple[float, list[float]]], scale: Scale, values: Range) -> str:
    upper = [(at, max(told)) for at, told in row]
    lower = [(at, min(told)) for at, told in reversed(row)]
    return _path([*upper, *lower], scale, values) + "Z"


def _path(points: Iterable[Point], scale: Scale, values: Range) -> str:
    """ "" where there is nothing; a point by itself is a short line, so that it is seen."""
    places = [(round(scale.at(at) * _UNITS / 100, 1), values.y(value)) for at, value in points]
    if len(places) == 1:
        places.append((min(_UNITS, places[0][0] + 1), places[0][1]))
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""
