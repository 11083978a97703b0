"""Has a series of step times gone up, and stayed up? An online test with a stated false-alarm rate. Pure.

Samples are put together by four, and of each four the second smallest stands for them: evaluations and checkpoints
every n-th step, and single spikes, leave no trace. Four such blocks make a block of the next level, and so on: short
levels see a large change soon, long ones see a small change in a noisy series.

On each level the newest `w` blocks are compared with those before them (64 at most). If nothing has changed, every
order of these blocks is equally likely, whatever the distribution is; so the chance that at most `j` of the `n` earlier
ones reach the lowest of the newest `w` is

    C(w + j, w) / C(n + w, w)

(a precedence test: Nelson, "Tables for a Precedence Life Test", Technometrics 1963). An alarm needs a chance so small
that, summed over all levels and `w`, there is less than one alarm in `RATE` samples, and a rise of `least`. This holds
for blocks that are exchangeable; what drifts slowly or is correlated comes near it as long as it stays below `least`
(see docs/slowness.md for what was measured). A slowness that ended by itself makes the next one of its length no news.

Nothing is compared before the first steps of a launch are past, which compile and fill caches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median_low

RATE = 1_000_000  # samples for one false alarm
GROUP = 4  # samples in a block, blocks in a block of the next level
LEVELS = 3
NEWEST = (4, 8)  # blocks that must all be slow
BEFORE = 64  # blocks they are compared with
SETTLE = 10  # samples after the start of a launch that are not looked at
AGAIN = 1.5  # times as long as one that went away by itself: then a slowness is told again
LEARNED = 64  # blocks of the first level: what lasts longer is told each time
_TESTS: float = sum(len(NEWEST) / GROUP ** (level + 1) for level in range(LEVELS))  # for each sample


@dataclass(frozen=True)
class Limits:
    """least: the smallest rise that is told, as a share. series: how many are watched together: they share `rate`."""

    least: float = 0.07
    rate: float = RATE
    series: int = 1

    @property
    def chance(self) -> float:
        """Of one test, under which it alarms."""
        return 1 / (self.rate * _TESTS * self.series)


@dataclass(frozen=True)
class Block:
    """step: the first one in it. seconds: of a step."""

    step: int
    seconds: float


@dataclass(frozen=True)
class Level:
    waiting: tuple[Block, ...] = ()  # for their block to be full
    blocks: tuple[Block, ...] = ()  # newest last

    def with_one(self, block: Block) -> tuple[Level, Block | None]:
        waiting = (*self.waiting, block)
        if len(waiting) < GROUP:
            return replace(self, waiting=waiting), None
        full = Block(waiting[0].step, median_low(b.seconds for b in waiting))
        return Level((), (*self.blocks, full)[-(BEFORE + max(NEWEST)) :]), full


_FRESH = (Level(),) * LEVELS


@dataclass(frozen=True)
class Slower:
    """Since about step `since`, steps take `now` seconds and not `before`. chance: of it where nothing has changed."""

    step: int
    since: int
    before: float
    now: float
    chance: float

    @property
    def ratio(self) -> float:
        return self.now / self.before


@dataclass(frozen=True)
class AsBefore:
    """It went away by itself."""

    step: int
    since: int
    before: float


@dataclass(frozen=True)
class Slow:
    """A slowness that goes on. blocks: how long, on the first level. told: it has lasted long enough to be."""

    found: Slower
    blocks: int = 0
    told: bool = False


@dataclass(frozen=True)
class Series:
    """patience: how many blocks a slowness lasted that went away. stashed: the levels before the one that goes on."""

    step: int = -1
    settling: int = SETTLE
    levels: tuple[Level, ...] = _FRESH
    slow: Slow | None = None
    stashed: tuple[Level, ...] = _FRESH
    patience: int = 0


def restarted(series: Series) -> Series:
    """The training goes on in another launch: its first steps are left out, what was learned of it is kept.

    A slowness may have ended with the launch before: if it has not, it is told again.
    """
    series = replace(series, settling=SETTLE, step=-1)
    if series.slow is not None:
        return replace(series, slow=replace(series.slow, blocks=0, told=False), levels=_FRESH)
    return replace(series, levels=tuple(replace(level, waiting=()) for level in series.levels))


def watch(series: Series, step: int, seconds: float, limits: Limits) -> tuple[Series, tuple[Slower | AsBefore, ...]]:
    """One sample: seconds of a step, or their mean over the steps since the last sample. Memory does not grow.

    A step that is not beyond the last one means that the training was set back: as `restarted`. What is no duration
    (not positive, not finite) is passed over.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        return series, ()
    if step <= series.step:
        series = restarted(series)
    series = replace(series, step=step)
    if series.settling:
        return replace(series, settling=series.settling - 1), ()
    levels, block, full = list(series.levels), Block(step, seconds), 0
    while full < LEVELS:
        levels[full], done = levels[full].with_one(block)
        if done is None:
            break
        block, full = done, full + 1
    series = replace(series, levels=tuple(levels))
    return _judge(series, full, limits) if full else (series, ())


def _judge(series: Series, full: int, limits: Limits) -> tuple[Series, tuple[Slower | AsBefore, ...]]:
    """`full`: on how many levels there is a new block."""
    slow, events = series.slow, []
    if slow is not None:
        base, newest = slow.found.before, [b.seconds for b in series.levels[0].blocks[-min(NEWEST) :]]
        if len(newest) == min(NEWEST) and median_low(newest) <= base * (1 + limits.least / 2):
            lasted = slow.blocks if slow.blocks <= LEARNED else 0
            series = replace(series, slow=None, levels=series.stashed, patience=max(series.patience, lasted))
            return series, (AsBefore(series.step, slow.found.since, base),) if slow.told else ()
        slow = replace(slow, blocks=slow.blocks + 1)
    found = next((f for level in series.levels[:full] if (f := _test(level.blocks, series.step, limits))), None)
    if found is not None and slow is None:
        slow = Slow(found, blocks=sum(b.step >= found.since for b in series.levels[0].blocks))
        series = replace(series, stashed=_until(series.levels, found.since), levels=_since(series.levels, found.since))
    elif found is not None and slow is not None and slow.told:  # slower still
        events.append(found)
        series = replace(series, levels=_since(series.levels, found.since))
    if slow is not None and not slow.told and slow.blocks >= max(min(NEWEST), AGAIN * series.patience):
        slow = replace(slow, told=True)
        events.append(replace(slow.found, step=series.step))
    return replace(series, slow=slow), tuple(events)


def _test(blocks: tuple[Block, ...], step: int, limits: Limits) -> Slower | None:
    for w in NEWEST:
        newest, before = blocks[-w:], [b.seconds for b in blocks[:-w][-BEFORE:]]
        if not before or len(newest) < w:
            continue
        lowest = min(b.seconds for b in newest)
        chance = math.comb(w + sum(b >= lowest for b in before), w) / math.comb(len(before) + w, w)
        was, now = median_low(before), median_low(b.seconds for b in newest)
        if chance <= limits.chance and now >= (1 + limits.least) * was:
            return Slower(step, newest[0].step, was, now, chance)
    return None


def _since(levels: tuple[Level, ...], step: int) -> tuple[Level, ...]:
    """What comes from now on is compared with the slow blocks alone."""
    return tuple(Level(level.waiting, tuple(b for b in level.blocks if b.step >= step)) for level in levels)


def _until(levels: tuple[Level, ...], step: int) -> tuple[Level, ...]:
    return tuple(Level((), tuple(b for b in level.blocks if b.step < step)) for level in levels)
