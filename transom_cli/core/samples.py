"""Which samples the steps of a run used, and whether each was used exactly once. Pure.

Rank 0 of each launch records once where its data position stands after a step, and again if the position does not
advance by a global batch (`ckpt.samples`). So a few records prove the whole run: a later launch replaces the steps of
earlier ones from its first step on, and each kept step must begin where the step before it ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mark:
    """After `step`, the samples up to `position` were used, counted from the start of the training."""

    launch: str  # its attempt and number, as in `7.0.1`
    step: int
    position: int
    global_batch: int
    size: int  # samples in an epoch
    world: int
    order: str = ""  # what else decides it, in words


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of one launch, first to last, which used the samples from `start` to before `end`."""

    launch: str
    world: int
    first: int
    last: int
    start: int
    end: int

    def cut(self, last: int, global_batch: int) -> Steps:
        return replace(self, last=last, end=self.start + (last - self.first + 1) * global_batch)


@dataclass(frozen=True)
class Proof:
    """repeated, omitted: ranges of positions, first to before last."""

    kept: tuple[Steps, ...] = ()  # steps in their order
    undone: tuple[Steps, ...] = ()  # steps that later launches replaced
    repeated: tuple[tuple[int, int], ...] = ()
    omitted: tuple[tuple[int, int], ...] = ()
    size: int = 0  # samples in an epoch
    broken: str = ""  # why nothing is proven, or ""

    @property
    def exact(self) -> bool:
        return bool(self.kept) and not (self.repeated or self.omitted or self.broken)

    @property
    def used(self) -> int:
        return sum(steps.end - steps.start for steps in self.kept)


def prove(marks: Iterable[Mark], newest: int) -> Proof:
    """Return which samples the run used.

    Args:
        marks: in the order of the launches, and in each in the order of its steps.
        newest: the newest step of the last launch.
    """
    kept: list[tuple[Steps, int]] = []
    undone: list[Steps] = []
    known = list(marks)
    for number, mark in enumerate(known):
        later = known[number + 1] if number + 1 < len(known) else None
        last = newest if later is None else mark.step if later.step <= mark.step else later.step - 1
        while kept and kept[-1][0].last >= mark.step:
            before, batch = kept.pop()
            undone.append(replace(before, first=max(before.first, mark.step), start=_at(before, batch, mark.step)))
            if before.first < mark.step:
                kept.append((before.cut(mark.step - 1, batch), batch))
        start = mark.position - mark.global_batch
        steps = Steps(mark.launch, mark.world, mark.step, mark.step, start, mark.position)
        kept.append((steps.cut(max(last, mark.step), mark.global_batch), mark.global_batch))
    return _judged(tuple(steps for steps, _ in kept), tuple(undone), known)


def _at(steps: Steps, global_batch: int, step: int) -> int:
    return steps.start + max(0, step - steps.first) * global_batch


def _judged(kept: tuple[Steps, ...], undone: tuple[Steps, ...], marks: list[Mark]) -> Proof:
    repeated, omitted, broken, position = [], [], "", 0
    if len({(mark.size, mark.order) for mark in marks}) > 1:
        broken = "launches used different datasets or orders"
    for number, steps in enumerate(kept):
        if number and steps.first != kept[number - 1].last + 1:
            broken = broken or f"no record of steps {kept[number - 1].last + 1} to {steps.first - 1}"
        if steps.start < position:
            repeated.append((steps.start, min(position, steps.end)))
        elif steps.start > position:
            omitted.append((position, steps.start))
        position = max(position, steps.end)
    return Proof(kept, undone, tuple(repeated), tuple(omitted), marks[0].size if marks else 0, broken)
