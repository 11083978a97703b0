"""Places along the time of a run, and the words below its axis. Pure, but for the local time zone of the words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from transom_cli.report.shapes import Mark

MARKS = 5  # words below an axis: as many as a phone has room for
_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    *(86400 * days for days in (1, 2, 4, 7, 14, 30, 60, 120, 365)),
)  # fmt: skip
_EDGE = 8.0  # percent: words that near to an end stand beside their place


@dataclass(frozen=True)
class Scale:
    """begin, end: seconds since the epoch; end is later."""

    begin: float
    end: float

    @classmethod
    def over(cls, begin: float, end: float) -> Scale:
        return cls(begin, max(end, begin + 1e-3))

    def at(self, time: float) -> float:
        """Percent, never outside of the drawing."""
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
