"""Detect that step times have risen and stayed up: an online test with a known false-alarm rate. Pure.

Samples are grouped by four, and the second smallest represents each group, so that evaluations and checkpoints every
n-th step and single spikes leave no trace. Four such blocks make a block of the next level, and so on: short levels see
a large change soon, long ones see a small change in a noisy series.

On each level the newest `w` blocks are compared with those before them (64 at most). If nothing has changed, all orders
of these blocks are equally likely, for any distribution. The chance that at most `j` of the `n` earlier blocks
reach the lowest of the newest `w` is therefore

    C(w + j, w) / C(n + w, w)

(a precedence test: Nelson, "Tables for a Precedence Life Test", Technometrics 1963). An alarm needs a rise of `least`,
and a chance so small that all levels and `w` together give less than one false alarm in `RATE` samples. This holds for
exchangeable blocks; slow drift and correlation come close to it while they stay below `least` (docs/slowness.md has the
measurements). After a slowness that ended by itself, another of the same length is not reported.

The first steps of a launch, which compile and fill caches, are not compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median_low

RATE = 1_000_000  # samples per false alarm
GROUP = 4  # samples in a block, blocks in a block of the next level
LEVELS = 3
NEWEST = (4, 8)  # blocks that must all be slow
BEFORE = 64  # earlier blocks to compare with
SETTLE = 10  # samples ignored after the start of a launch
AGAIN = 1.5  # a slowness this many times as long as one that ended by itself is reported again
LEARNED = 64  # blocks of the first level; a slowness longer than that is always reported
_TESTS: float = sum(len(NEWEST) / GROUP ** (level + 1) for level in range(LEVELS))  # per sample


@dataclass(frozen=True)
class Limits:
    """least: the smallest rise reported, as a share. series: how many are watched together and share `rate`."""

    least: float = 0.07
    rate: float = RATE
    series: int = 1

    @property
    def chance(self) -> float:
        """Return the chance below which one test alarms."""
        return 1 / (self.rate * _TESTS * self.series)


@dataclass(frozen=True)
class Block:
    """step: the first step in it. seconds: per step."""

    step: int
    seconds: float


@dataclass(frozen=True)
class Level:
    waiting: tuple[Block, ...] = ()  # until their block is full
    blocks: tuple[Block, ...] = ()  # the newest last

    def with_one(self, block: Block) -> tuple[Level, Block | None]:
        waiting = (*self.waiting, block)
        if len(waiting) < GROUP:
            return replace(self, waiting=waiting), None
        full = Block(waiting[0].step, median_low(b.seconds for b in waiting))
        return Level((), (*self.blocks, full)[-(BEFORE + max(NEWEST)) :]), full


_FRESH = (Level(),) * LEVELS


@dataclass(frozen=True)
class Slower:
    """From about step `since` on, a step takes `now` instead of `before` seconds. chance: of this without a change."""

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
    """The slowness ended by itself."""

    step: int
    since: int
    before: float


@dataclass(frozen=True)
class Slow:
    """A current slowness. blocks: its length, on the first level. reported: whether it was long enough for that."""

    found: Slower
    blocks: int = 0
    reported: bool = False


@dataclass(frozen=True)
class Series:
    """patience: length in blocks of a slowness that ended by itself. stashed: the levels before the current one."""

    step: int = -1
    settling: int = SETTLE
    levels: tuple[Level, ...] = _FRESH
    slow: Slow | None = None
    stashed: tuple[Level, ...] = _FRESH
    patience: int = 0


def restarted(series: Series) -> Series:
    """Continue in another launch: skip its first steps, keep what was learned.

    A slowness may have ended with the previous launch; if not, it is reported again.
    """
    series = replace(series, settling=SETTLE, step=-1)
    if series.slow is not None:
        return replace(series, slow=replace(series.slow, blocks=0, reported=False), levels=_FRESH)
    return replace(series, levels=tuple(replace(level, waiting=()) for level in series.levels))


def watch(series: Series, step: int, seconds: float, limits: Limits) -> tuple[Series, tuple[Slower | AsBefore, ...]]:
    """Add one sample: the seconds of a step, or their mean since the last sample. Memory is constant.

    A step that is not after the last one means a rollback, handled like `restarted`. Values that are not positive and
    finite are ignored.
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
    """Test all levels with a new block. full: how many these are."""
    slow, events = series.slow, []
    if slow is not None:
        base, newest = slow.found.before, [b.seconds for b in series.levels[0].blocks[-min(NEWEST) :]]
        if len(newest) == min(NEWEST) and median_low(newest) <= base * (1 + limits.least / 2):
            lasted = slow.blocks if slow.blocks <= LEARNED else 0
            series = replace(series, slow=None, levels=series.stashed, patience=max(series.patience, lasted))
            return series, (AsBefore(series.step, slow.found.since, base),) if slow.reported else ()
        slow = replace(slow, blocks=slow.blocks + 1)
    found = next((f for level in series.levels[:full] if (f := _test(level.blocks, series.step, limits))), None)
    if found is not None and slow is None:
        slow = Slow(found, blocks=sum(b.step >= found.since for b in series.levels[0].blocks))
        series = replace(series, stashed=_until(series.levels, found.since), levels=_since(series.levels, found.since))
    elif found is not None and slow is not None and slow.reported:  # slower still
        events.append(found)
        series = replace(series, levels=_since(series.levels, found.since))
    if slow is not None and not slow.reported and slow.blocks >= max(min(NEWEST), AGAIN * series.patience):
        slow = replace(slow, reported=True)
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
    """Keep the slow blocks only, to compare future ones with."""
    return tuple(Level(level.waiting, tuple(b for b in level.blocks if b.step >= step)) for level in levels)


def _until(levels: tuple[Level, ...], step: int) -> tuple[Level, ...]:
    return tuple(Level((), tuple(b for b in level.blocks if b.step < step)) for level in levels)
