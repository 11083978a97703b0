"""Whether a start made progress, where its steps count from the start of its processes. Pure.

Automatic heartbeats count optimizer steps from 1 in each process. A trainer that resumed from its own checkpoint at
step 500 and made 40 steps reports the same as one that began again at step 0. So the numbers of two starts are not
compared as positions in the training. They are compared as lengths:

- Failures that have nothing to do with the training end its starts at different lengths. Such a start made progress.
- A crash loop repeats itself. A start is a repetition if it made about as many steps as the last start that made any
  (within `NEAR` steps, or 2%), or if it made `FEW` steps or less and is not the first one.

A repetition does not refill a budget, so a deterministic crash is stopped after the usual number of starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FEW = 10
NEAR = 3


@dataclass(frozen=True)
class Progress:
    """How far a training has come. A step of -1: none.

    The operator has one for the run: a start is an attempt. The launcher has one for its attempt: a start is a launch.
    """

    step: int = -1  # of the present start
    max_step: int = -1  # of all starts
    since_start: bool = False  # steps count from the start of the processes
    made: int = -1  # then: the most steps that a launch of the present start has made
    made_before: int = -1  # and of the last start before it that made any
    durable: int = -1  # newest published checkpoint

    @property
    def by_length(self) -> bool:
        """Whether only the lengths of starts can be compared."""
        return self.since_start and self.durable < 0

    @property
    def reached(self) -> int:
        """What a restart can count on: the newest checkpoint, or without checkpoints the newest step."""
        return self.durable if self.durable >= 0 else self.max_step

    def further_than(self, reached: int) -> bool:
        """Whether the present start made progress. reached: what it could count on."""
        return made_progress(self.made, self.made_before) if self.by_length else self.reached > reached

    def stepped(self, step: int, since_start: bool, made: int) -> Progress:
        """After a report of `step`. made: the most steps of a launch, where they count from the start of processes."""
        if self.since_start and not since_start:  # now the training's own step is known
            return replace(self, step=step, max_step=step, since_start=False)
        newest = replace(self, step=max(step, self.step), max_step=max(step, self.max_step), since_start=since_start)
        return replace(newest, made=max(made, self.made)) if since_start else newest

    def new_launch(self) -> Progress:
        return replace(self, step=-1)

    def new_attempt(self) -> Progress:
        return replace(self, step=-1, made=-1)

    def counted(self) -> Progress:
        """The budget has judged the present start: from here on it is the one before."""
        return replace(self, made_before=self.made if self.made >= 0 else self.made_before)


def made_progress(made: int, before: int) -> bool:
    """Judge a start by its length.

    Args:
        made: its steps, -1: none.
        before: the steps of the last start that made any, -1: no start did.
    """
    if made < 0 or before < 0:
        return made >= 0
    return made > FEW and abs(made - before) > max(NEAR, before // 50)


def newest_step(known: tuple[int, bool], seen: tuple[int, bool]) -> tuple[int, bool]:
    """Return the newer of a known step and one that is seen now, each with whether it counts from the start.

    The training's own step takes precedence over a count.
    """
    if known[0] < 0 or seen[0] < 0:
        return seen if known[0] < 0 else known
    if known[1] == seen[1]:
        return max(known, seen)
    return seen if known[1] else known
