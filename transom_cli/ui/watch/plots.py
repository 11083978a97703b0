"""Curves of a run in letters, by plotext: loss, step time, goodput. Pure, but for plotext, whose figure is global."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from transom_cli.core.goodput.curves import Point
from transom_cli.ui.lines import Line, line
from transom_cli.ui.watch.past import Past
from transom_cli.ui.words import span

KEPT = 1800  # points of each curve that the screen itself has seen
_TICKS, _LABEL = 5, 7
_AXIS = 2  # rows of the time's axis, below the last curve


def _points() -> deque[Point]:
    return deque(maxlen=KEPT)


@dataclass
class Curves:
    """What was kept before the screen was opened, and what it has seen since. Times in seconds since the epoch."""

    past: Past = field(default_factory=Past)
    _loss: deque[Point] = field(default_factory=_points)
    _pace: deque[Point] = field(default_factory=_points)
    _goodput: deque[Point] = field(default_factory=_points)
    _seen: int = -1

    def add(self, at: float, step: int, loss: float | None, step_time: float | None, goodput: float | None) -> None:
        """A look; loss and pace count where there is a new step. What is no number the screen tells in words."""
        new, self._seen = step != self._seen, step
        if new and loss is not None and loss == loss and abs(loss) != float("inf"):
            self._loss.append((at, loss))
        if new and step_time is not None:
            self._pace.append((at, step_time))
        if goodput is not None:
            self._goodput.append((at, 100 * goodput))

    def named(self) -> tuple[tuple[str, list[Point]], ...]:
        return (
            ("loss", _joined(self.past.loss, self._loss)),
            ("seconds a step", _joined(self.past.pace, self._pace)),
            ("goodput, % of the time so far", _joined(self.past.goodput, self._goodput)),
        )


def _joined(past: Sequence[Point], seen: Sequence[Point]) -> list[Point]:
    """What was kept counts up to where the screen's own looks begin, and after them: the screen may have slept."""
    if not seen:
        return list(past)
    first, last = seen[0][0], seen[-1][0]
    return [*(one for one in past if one[0] < first), *seen, *(one for one in past if one[0] > last)]


def plot_lines(curves: Curves, width: int, height: int) -> list[Line]:
    """One below the other over the same time, each as high as there is room, with words above it; words alone for one
    without two points.
    """
    named = curves.named()
    drawn = [points for _, points in named if len(points) > 1]
    begin, end = (min(points[0][0] for points in drawn), max(points[-1][0] for points in drawn)) if drawn else (0, 0)
    each = max(3, (height - len(named) - _AXIS) // max(1, len(drawn)))
    lines: list[Line] = []
    for title, points in named:
        if len(points) < 2:
            lines.append(line((f"{title}: nothing to draw yet", "dim")))
            continue
        lines.append(line((f"{title}  ", "dim"), f"{points[-1][1]:.4g}"))
        last = points is drawn[-1]
        lines += [line(text) for text in _drawn(points, (begin, end), max(20, width), each + _AXIS * last, axis=last)]
    return lines


def _drawn(points: Sequence[Point], time: tuple[float, float], width: int, height: int, *, axis: bool) -> list[str]:
    import plotext

    long = time[1] - time[0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.frame(False)
    plotext.xaxes(axis, False)
    plotext.yaxes(True, False)
    plotext.plot([at - time[1] for at, _ in points], [value for _, value in points], marker="braille")
    plotext.xlim(-long, 0)
    plotext.yticks([low, high], [f"{value:>{_LABEL}.4g}" for value in (low, high)])
    places = [-long * n / (_TICKS - 1) for n in reversed(range(_TICKS))] if axis else []
    plotext.xticks(places, [f"-{span(-at)}" if at else "now" for at in places])
    text: str = plotext.uncolorize(plotext.build())
    return text.splitlines()
