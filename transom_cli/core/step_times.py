"""How long this run's steps take, and how long it may be silent. Pure.

Two limits come out of the same samples:

- `tight`: for when something besides silence speaks against a rank (a stopped or vanished process, a node whose table
  no longer comes): `factor` times median plus spread of the last steps.
- `patient`: for when nothing does. Evaluation every n steps, a second compilation, a slow data shard look just like a
  hang from outside, and are a detector's typical false alarm. So it is `patience` times wider (24 medians by default:
  an evaluation of 20 steps' length passes unseen the first time); it is at least twice `floor`, and in the first
  seconds of stepping, when compilations fall, as long as these are taken to last (core.quiet); and a silence that the
  run came back from by itself raises it for good to `HEADROOM` times that silence. What is longer than all that and was
  never seen before raises one alarm; a launch that is ended for that counts as come back, since it might have: so a
  long evaluation is not ended for ever. When the next launch falls silent after the very same step, as it does at an
  evaluation, it is ended too, and the third may take six times as long as the second, the fourth as the third: else
  the relaunches would be spent before enough was learned.

A median and an interquartile range, so that a few long steps among many do not move the limits by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 64  # steps that the median is taken over
ENOUGH = 3  # samples below which nothing is known yet
HEADROOM = 1.5


@dataclass(frozen=True)
class StepTimes:
    """`samples`: seconds a step, newest last. `longest`: the longest silence the run came back from by itself, s."""

    samples: tuple[float, ...] = ()
    longest: float = 0.0
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

    def with_silence(self, seconds: float) -> StepTimes:
        return self if seconds <= self.longest else replace(self, longest=seconds)

    def tight(self, factor: float, floor: float, ceiling: float) -> float:
        """Seconds. Never below floor nor below factor x median, whatever the ceiling says."""
        return max(floor, factor * self.median, min(ceiling, factor * (self.median + self.spread)))

    def patient(self, factor: float, patience: float, floor: float, ceiling: float) -> float:
        """Seconds; never below `tight`."""
        wide = max(patience * factor * (self.median + self.spread), HEADROOM * self.longest, 2 * floor)
        return max(self.tight(factor, floor, ceiling), min(ceiling, wide))
