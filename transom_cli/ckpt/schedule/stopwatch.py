"""Seconds a step, from the moments at which a trainer calls; those beside a write apart. Reads no clock itself."""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 64  # steps that the median is taken over
MOST = 4.0  # usual steps that one step beside a write may count for: an evaluation falls there too


class Stopwatch:
    """`stop` when the trainer calls, `go` when it may train on, `saved` when it has made a copy to be written."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=WINDOW)
        self._clear: deque[float] = deque(maxlen=WINDOW)  # beside no write; none come where every step is saved
        self._step = 0
        self._from: float | None = None
        self._beside = False
        self._usual: float | None = None  # when the write began
        self._slowed = 0.0

    def stop(self, step: int, at: float) -> None:
        """Steps up to `step` are done. A call with no new step, or an older one, measures nothing."""
        count = step - self._step
        if self._from is not None and count > 0:
            seconds = max(0.0, at - self._from)
            self._all.append(seconds / count)
            if not self._beside:
                self._clear.append(seconds / count)
            elif self._usual is not None:
                usual = self._usual * count
                self._slowed += min(seconds, MOST * usual) - usual
        self._step, self._from = step, None

    def go(self, at: float, beside: bool) -> None:
        """`beside`: something is being written."""
        self._from, self._beside = at, beside

    def saved(self) -> None:
        self._usual = median(self._clear) if self._clear else None
        self._slowed = 0.0

    @property
    def step(self) -> float | None:
        """Median seconds of a step. None: there was none yet."""
        return median(self._all) if self._all else None

    @property
    def slowed(self) -> float | None:
        """What the steps beside the last write took, in seconds, beyond the usual. None: the usual was not known."""
        return None if self._usual is None else self._slowed
