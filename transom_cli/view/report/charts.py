"""Plots of steps, step time and loss over the time of a run. Pure, except for the local time zone of axis labels.

A long run is reduced to columns, each with the median and a band from the lowest to the highest value. The last sample
of each launch is always drawn, and so is the point at which repeated steps end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from statistics import median

from transom_cli.core.goodput import NS, History
from transom_cli.core.goodput.account import Loss, step_times
from transom_cli.core.goodput.model import Launch
from transom_cli.plural import several
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.report.model import Mark, Paragraph, Plot, Trace
from transom_cli.view.text import count, span

MARKS = 5  # labels of an axis, as many as fit on a phone
_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    *(86400 * days for days in (1, 2, 4, 7, 14, 30, 60, 120, 365)),
)  # fmt: skip
_EDGE = 8.0  # percent: labels so close to an edge are not centred
COLUMNS = 300
_UNITS = 1000.0
_HEADROOM, _ABOVE = 1.05, 1.25  # of the step axis and the step time axis
_RARE = 0.99  # quantile of step times that the axis covers; those above are cut off
_NEAR = 2  # columns: points further apart are not joined
Point = tuple[float, float]  # Unix time, value


@dataclass(frozen=True)
class Scale:
    """Maps time to a position. begin, end: Unix time; end is later."""

    begin: float
    end: float

    @classmethod
    def over(cls, begin: float, end: float) -> Scale:
        return cls(begin, max(end, begin + 1e-3))

    def at(self, time: float) -> float:
        """Return the position in percent, between 0 and 100."""
        return round(min(100.0, max(0.0, 100.0 * (time - self.begin) / (self.end - self.begin))), 3)

    def axis(self) -> tuple[Mark, ...]:
        length = self.end - self.begin
        step = next((s for s in _STEPS if length / s <= MARKS), _STEPS[-1])
        shift = datetime.fromtimestamp(self.begin).astimezone().utcoffset()
        zone = shift.total_seconds() if shift is not None else 0.0
        first = (self.begin + zone) // step + 1
        times = [(first + i) * step - zone for i in range(MARKS)]
        return tuple(_mark(self.at(t), t, step) for t in times if t <= self.end)


def _mark(x: float, at: float, step: int) -> Mark:
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43200 else "%d %b"
    anchor = "start" if x < _EDGE else "end" if x > 100 - _EDGE else "middle"
    return Mark(x, datetime.fromtimestamp(at).strftime(form), anchor)


def scale_of(book: RunRecord) -> Scale:
    return Scale.over(book.account.begin / NS, book.account.until / NS)


@dataclass(frozen=True)
class Range:
    """The values at the lower and the upper edge of a plot."""

    low: float
    high: float

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(_UNITS * (1 - min(1.0, max(0.0, share))), 1)


# --- steps ---


def steps(history: History, scale: Scale) -> Plot | Paragraph:
    """Plot steps, with repeated ones in a tone of their own."""
    launches = [one for attempt in history.attempts for one in attempt.launches if one.samples]
    if not launches:
        return Paragraph("Steps: not recorded. No steps of this run were seen.", "dim")
    highest = max(s.step for one in launches for s in one.samples)
    values = Range(0.0, max(highest * _HEADROOM, 1.0))
    first: list[str] = []
    again: list[str] = []
    newest = -1
    for one in launches:
        best = -1 if one.since_start else newest
        points = _thinned(one, scale, best)
        again.append(_path([p for p in points if p[1] <= best], scale, values))
        first.append(_path([p for p in points if p[1] >= best], scale, values))
        newest = max(best, one.samples[-1].step) if not one.since_start else newest
    counted = any(one.since_start for one in launches)
    label = "steps since the start of each launch" if counted else "steps done for the first time"
    traces = [Trace(" ".join(filter(None, first)), "productive", label)]
    if any(again):
        traces.append(Trace(" ".join(filter(None, again)), "redone", "repeated steps"))
    stretches = sum(map(bool, again))
    extent = f"From step {count(launches[0].samples[0].step)} to {count(highest)}, launches: {count(len(launches))}"
    about = f"{extent}, with repeated steps: {count(stretches)}."
    if counted:
        about = f"{extent}. Steps count from the start of each launch, so repeated steps are not recognised."
    return Plot("Steps", about, count(round(values.high)), "0", tuple(traces), scale.axis(), about)


def _thinned(launch: Launch, scale: Scale, newest: int) -> list[Point]:
    """Keep one point per column, the last, and the point at which repeated steps end."""
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


def step_time_plot(history: History, scale: Scale) -> Plot | Paragraph:
    pace = [step_times(one) for attempt in history.attempts for one in attempt.launches]
    values = sorted(value for points in pace for _, value in points)
    if not values:
        return Paragraph("Step time: not recorded. No launch has two steps with known times.", "dim")
    top = values[min(len(values) - 1, math.ceil(_RARE * len(values)) - 1)] * _ABOVE
    cut = sum(value > top for value in values)
    note = f"Wall time between two samples, per step; median {_seconds(median(values))}."
    note += f" {several(cut, 'value')} above the upper edge, up to {_seconds(values[-1])}." if cut else ""
    return _drawn("Step time", note, pace, Range(0.0, top), scale, _seconds)


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 100 else span(value)


# --- the loss ---


def losses(found: Sequence[Loss], last: Sequence[Loss], scale: Scale) -> Plot | Paragraph:
    """Plot the loss. last: the newest of each attempt, if there are none over time."""
    series: dict[tuple[str, int], list[Point]] = {}
    for one in found:
        if math.isfinite(one.loss):
            series.setdefault((one.attempt, one.launch), []).append((one.at, one.loss))
    values = [value for points in series.values() for _, value in points]
    if len(values) < 2:
        newest = "; ".join(f"attempt {o.attempt}: {o.loss:.6g} at step {count(o.step)}" for o in last[-5:])
        known = f" Last reported: {newest}." if newest else ""
        return Paragraph(f"Loss: not recorded over time.{known}", "dim")
    odd = len(found) - len(values)
    note = f"{several(odd, 'value')} left out: not a finite number." if odd else "As reported by the trainer."
    return _drawn("Loss", note, list(series.values()), _around(values), scale, lambda v: f"{v:.4g}")


def _around(values: Sequence[float]) -> Range:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-6)
    return Range(low - margin, high + margin)


# --- drawing ---


def _drawn(
    caption: str,
    note: str,
    series: Sequence[Sequence[Point]],
    values: Range,
    scale: Scale,
    label: Callable[[float], str],
) -> Plot:
    points = sorted(point for one in series for point in one)
    if len(points) <= COLUMNS:
        traces = [Trace(" ".join(_path(one, scale, values) for one in series if one), "line", caption)]
    else:
        rows = _rows(points, scale)
        lines = [_path([(at, median(found)) for at, found in row], scale, values) for row in rows]
        bands = [_band(row, scale, values) for row in rows]
        traces = [Trace(" ".join(bands), "band", "lowest to highest"), Trace(" ".join(lines), "line", "median")]
    return Plot(caption, note, label(values.high), label(values.low), tuple(traces), scale.axis(), note)


def _rows(points: Sequence[Point], scale: Scale) -> list[list[tuple[float, list[float]]]]:
    """Return (time, values) of each column, grouped into rows of neighbouring columns."""
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
    upper = [(at, max(found)) for at, found in row]
    lower = [(at, min(found)) for at, found in reversed(row)]
    return _path([*upper, *lower], scale, values) + "Z"


def _path(points: Iterable[Point], scale: Scale, values: Range) -> str:
    """Return SVG path data; "" for no points. A single point becomes a short line, so that it is visible."""
    places = [(round(scale.at(at) * _UNITS / 100, 1), values.y(value)) for at, value in points]
    if len(places) == 1:
        places.append((min(_UNITS, places[0][0] + 1), places[0][1]))
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""


# --- a value over a setting ---


def curve(
    caption: str, note: str, series: Sequence[tuple[str, Sequence[tuple[float, float, float, float]]]],
    label: Callable[[float], str],
) -> Plot:  # fmt: skip
    """Plot lines with a band around the first one. series: title and (x, low, value, high) of each."""
    places = [x for _, points in series for x, *_ in points]
    values = _around([y for _, points in series for _, *ys in points for y in ys])
    scale = Scale.over(min(places), max(places))
    first = series[0][1]
    around = [*((x, high) for x, _, _, high in first), *((x, low) for x, low, _, _ in reversed(first))]
    traces = [Trace(_path(around, scale, values) + "Z", "band", f"90% interval of {series[0][0]}")]
    for (title, points), tone in zip(series, _TONES, strict=False):
        traces.append(Trace(_path([(x, value) for x, _, value, _ in points], scale, values), tone, title))
    axis = tuple(
        Mark(scale.at(x), f"{x:g}", "start" if x == scale.begin else "end" if x == scale.end else "middle")
        for x in sorted({scale.begin, *sorted(places)[:: max(1, len(places) // MARKS)], scale.end})
    )
    return Plot(caption, note, label(values.high), label(values.low), tuple(traces), axis, note)


_TONES = ("line", "productive", "redone")  # of as many lines as can be told apart
