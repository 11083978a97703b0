"""Curves of a run in letters, by plotext: loss, step time, steps. Pure, but for plotext, whose figure is global."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from transom_cli.ui.lines import Line, line

KEPT = 1800  # points of each curve


@dataclass
class Curves:
    """Of what the screen has seen since it was opened: (minutes since then, value)."""

    loss: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    pace: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _began: float | None = None

    def add(self, at: float, step: int, loss: float | None, step_time: float | None) -> None:
        """A look. What is no number is left out: the screen tells of it in words."""
        self._began = at if self._began is None else self._began
        minutes = (at - self._began) / 60
        if step >= 0:
            self.steps.append((minutes, step))
        if loss is not None and loss == loss and abs(loss) != float("inf"):
            self.loss.append((minutes, loss))
        if step_time is not None:
            self.pace.append((minutes, step_time))


def plot_lines(curves: Curves, width: int, height: int) -> list[Line]:
    """One below the other, each as high as there is room; a line of words for one without two points."""
    named = (("loss", curves.loss), ("seconds a step", curves.pace), ("step", curves.steps))
    each = max(5, height // len(named))
    lines: list[Line] = []
    for title, points in named:
        if len(points) < 2:
            lines.append(line((f"{title}: nothing to draw yet; curves begin when this screen is opened", "dim")))
            continue
        lines += [line(text) for text in _drawn(f"{title}, by minutes", list(points), max(20, width), each)]
    return lines


def _drawn(title: str, points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title(title)
    plotext.plot([x for x, _ in points], [y for _, y in points], marker="dot")
    text: str = plotext.uncolorize(plotext.build())
    return text.splitlines()
