"""Plots of loss, step time and goodput, and sparklines, as text. Pure, except for plotext's global figure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from transom_cli.core.goodput.account import Point
from transom_cli.view.read_history import TimeSeries
from transom_cli.view.text import LABEL, Line, Span, line, row, span

KEPT = 1800  # points per series that the screen itself has seen
_TICKS, _LABEL = 5, 7
_LEAST = 3  # rows of a plot without its title
_AXIS = 2  # rows of the time axis, below the last plot
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"
RECENT = 900.0  # seconds that a sparkline covers


def _points() -> deque[Point]:
    return deque(maxlen=KEPT)


@dataclass
class LivePlots:
    """Time series from before the screen was opened (`series`), and what it has seen since. Times are Unix time."""

    series: TimeSeries = field(default_factory=TimeSeries)
    ascii: bool = False  # the terminal's font has no other characters, as that of the Linux console
    _loss: deque[Point] = field(default_factory=_points)
    _step_time: deque[Point] = field(default_factory=_points)
    _goodput: deque[Point] = field(default_factory=_points)
    _seen: int = -1

    def add(self, at: float, step: int, loss: float | None, step_time: float | None, goodput: float | None) -> None:
        """Add a look. Loss and step time count only with a new step, and a loss that is not finite never."""
        new, self._seen = step != self._seen, step
        if new and loss is not None and loss == loss and abs(loss) != float("inf"):
            self._loss.append((at, loss))
        if new and step_time is not None:
            self._step_time.append((at, step_time))
        if goodput is not None:
            self._goodput.append((at, 100 * goodput))

    def named(self) -> tuple[tuple[str, list[Point]], ...]:
        return (
            ("loss", _joined(self.series.loss, self._loss)),
            ("seconds per step", _joined(self.series.step_time, self._step_time)),
            ("goodput, % of the time so far", _joined(self.series.goodput, self._goodput)),
        )


def _joined(series: Sequence[Point], seen: Sequence[Point]) -> list[Point]:
    """Use the recorded points before and after the screen's own: the machine may have slept."""
    if not seen:
        return list(series)
    first, last = seen[0][0], seen[-1][0]
    return [*(one for one in series if one[0] < first), *seen, *(one for one in series if one[0] > last)]


def trend(plots: LivePlots, width: int) -> Line:
    """Return sparklines of loss and step time over the last quarter of an hour; () if there is nothing to draw."""
    room = min(48, (width - LABEL - 36) // 2)
    spans: list[Span] = []
    for name, (_, points) in zip(("loss", "step time"), plots.named(), strict=False):
        recent = [value for at, value in points if at >= points[-1][0] - RECENT]
        if len(recent) > 1 and room > 0:
            unit = " s" if name == "step time" else ""
            spans += [
                (f"{name} ", ""),
                (sparkline(recent, room, _ASCII if plots.ascii else _BLOCKS), "note"),
                (f" {recent[-1]:.4g}{unit}   ", ""),
            ]
    return row("trend", *spans) if spans else ()


def sparkline(values: Sequence[float], width: int, levels: str = _BLOCKS) -> str:
    """Return a character per value, of eight levels; of more values than `width`, per mean of neighbours."""
    size = max(1.0, len(values) / width)
    edges = [int(n * size) for n in range(int(len(values) / size) + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(levels[round(7 * (mean - low) / (high - low)) if high > low else 3] for mean in means)


def plot_lines(plots: LivePlots, width: int, height: int, most: int = 3) -> list[Line]:
    """Stack the first `most` plots over a common time axis, each with a title.

    A series with fewer than two points has no plot. Without any plot, one line says so.
    """
    named = plots.named()[: min(most, max(1, (height - _AXIS) // (1 + _LEAST)))]
    drawn = [points for _, points in named if len(points) > 1]
    begin, end = (min(points[0][0] for points in drawn), max(points[-1][0] for points in drawn)) if drawn else (0, 0)
    each = max(_LEAST, (height - len(named) - _AXIS) // max(1, len(drawn)))
    if not drawn:
        return [line(("no steps to plot yet", "dim"))]
    lines: list[Line] = []
    marker = "*" if plots.ascii else "braille"
    for title, points in named:
        if len(points) < 2:
            none = "the training reports none; `beat(step, loss=loss)` does" if title == "loss" else "no data yet"
            lines.append(line((f"{title}: {none if not points else 'no data yet'}", "dim")))
            continue
        lines.append(line((f"{title}  ", "dim"), f"{points[-1][1]:.4g}"))
        last = points is drawn[-1]
        lines += [
            line(text)
            for text in _drawn(points, (begin, end), max(20, width), each + _AXIS * last, axis=last, marker=marker)
        ]
    return lines


def _drawn(
    points: Sequence[Point], time: tuple[float, float], width: int, height: int, *, axis: bool, marker: str
) -> list[str]:
    import plotext

    long = time[1] - time[0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.frame(False)
    plotext.xaxes(axis, False)
    plotext.yaxes(True, False)
    plotext.plot([at - time[1] for at, _ in points], [value for _, value in points], marker=marker)
    plotext.xlim(-long, 0)
    plotext.yticks([low, high], [f"{value:>{_LABEL}.4g}" for value in (low, high)])
    places = [-long * n / (_TICKS - 1) for n in reversed(range(_TICKS))] if axis else []
    plotext.xticks(places, [f"-{span(-at)}" if at else "now" for at in places])
    text: str = plotext.uncolorize(plotext.build())
    return text.splitlines()
