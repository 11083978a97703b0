"""How long this run's steps take, and how long it may be silent. Pure.

Two limits are computed from the same samples:

- `tight` applies if there is other evidence than silence: a stopped or vanished process, or a node whose table is late.
  It is `factor` times the median plus the spread of the last steps.
- `patient` applies to silence alone. From outside, an evaluation every n steps, a second compilation or a slow data
  shard looks like a hang; these are the typical false alarms. So this limit is `patience` times wider: 24 medians by
  default, so that an evaluation as long as 20 steps raises no alarm the first time. It is at least twice `floor`. In
  the first seconds of stepping it allows for compilations (`core.stall`). A silence after which the ranks stepped
  again raises it permanently to `HEADROOM` times that silence.

A longer silence raises an alarm. A launch that was ended for silence counts as one that would have stepped again, so a
long evaluation cannot end every launch. If the next launch falls silent after the very same step, it is ended too; the
third may take six times as long as the second, and the fourth six times as long as the third. Otherwise the relaunches
would be used up before the limit is learned.

`ceiling` bounds all this, but not what the run's own history shows: a silence from which the ranks came back by
themselves is no hang the next time, however long it was (a barrier of 704 ranks once took 4 h 56 min). That is learned
apart for saving and restoring.

A median and an interquartile range, so that a few long steps among many do not move the limits by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 64  # steps that the median is taken over
ENOUGH = 3  # samples below which nothing is known yet
HEADROOM = 1.5
AS_LONG = 1.1  # times a silence that was normal: the next one of its kind may be a little longer


@dataclass(frozen=True)
class StepTimes:
    """How long the steps were.

    Args:
        samples: seconds a step, newest last, each the mean of the steps between two readings.
        longest: the longest silence that the run came back from by itself, between two steps, s.
        saving: the same in a checkpoint or restore, s.
        ended: the longest silence for which a launch was ended, s.
    """

    samples: tuple[float, ...] = ()
    longest: float = 0.0
    saving: float = 0.0
    ended: float = 0.0
    median: float = 0.0
    spread: float = 0.0  # interquartile range, s

    @property
    def known(self) -> bool:
        return len(self.samples) >= ENOUGH

    def with_step(self, seconds: float) -> StepTimes:
        samples = (*self.samples[1 - WINDOW :], seconds)
        ordered = sorted(samples)
        n = len(ordered)
        median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        return replace(self, samples=samples, median=median, spread=ordered[(3 * n) // 4] - ordered[n // 4])

    def with_silence(self, between: float, saving: float = 0.0) -> StepTimes:
        if between <= self.longest and saving <= self.saving:
            return self
        return replace(self, longest=max(between, self.longest), saving=max(saving, self.saving))

    def with_end(self, seconds: float) -> StepTimes:
        return replace(self, ended=max(seconds, self.ended))

    def normal(self, saving: bool) -> float:
        """How long a silence was normal in this run, s."""
        return AS_LONG * max(self.longest, self.saving if saving else 0.0)

    def tight(self, factor: float, floor: float, ceiling: float) -> float:
        """Seconds. Never below floor nor below factor x median, whatever the ceiling says."""
        return max(floor, factor * self.median, min(ceiling, factor * (self.median + self.spread)))

    def patient(self, factor: float, patience: float, floor: float, ceiling: float) -> float:
        """Seconds; never below `tight`."""
        wide = max(patience * factor * (self.median + self.spread), HEADROOM * max(self.longest, self.ended), 2 * floor)
        return max(self.tight(factor, floor, ceiling), min(ceiling, wide), self.normal(saving=False))
