"""How far a training has come, and whether a start made progress, for both deciders. Pure.

A newer checkpoint is progress; without checkpoints, a newer step is. But automatic heartbeats count optimizer steps
from 1 in each process. A trainer that resumed from its own checkpoint at step 500 and made 40 steps reports the same as
one that began again at step 0. So the numbers of two starts are not compared as positions in the training. They are
compared as lengths:

- Failures that have nothing to do with the training end its starts at different lengths. Such a start made progress.
- A crash loop repeats itself. A start is a repetition if it made about as many steps as the last start that made any
  (within `NEAR` steps, or 2%), or if it made `FEW` steps or less and is not the first one.

A repetition does not refill a budget, so a deterministic crash is stopped after the usual number of starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transom_cli.plural import several

FEW = 10
NEAR = 3
_TAKEN_BACK = ("time_limit", "preempted", "maintenance")  # causes for which Slurm ends an attempt


@dataclass(frozen=True)
class Counted:
    """The progress of the starts that the budget has counted."""

    step: int = -1  # the newest, if it counts from the start of the training
    made: int = -1  # steps of the last start that made any, if they count from the start of its processes
    durable: int = -1  # the newest checkpoint


@dataclass(frozen=True)
class OwnCheckpoint:
    """The trainer's own newest checkpoint, which transom does not read."""

    path: str  # from the job's directory, if it is below it
    step: int
    sealed: bool
    changed: float  # Unix time


@dataclass(frozen=True)
class Progress:
    """How far a training has come.

    The operator has one for the run: a start is an attempt. The launcher has one for its attempt: a start is a launch.
    """

    step: int = -1  # the newest step that all ranks of the present launch have done; -1: none
    max_step: int = -1  # of all starts
    since_start: bool = False  # steps count from the start of the processes
    made: int = -1  # then: the most steps that a launch of the present start has made
    durable: int = -1  # the newest published checkpoint
    counted: Counted = Counted()

    def further(self, cause: str = "") -> bool:
        """Whether the present start made progress: a newer checkpoint, or without checkpoints newer steps.

        Without checkpoints of transom's, a trainer may count steps from its own start and keep its state by itself, so
        that no number shows its progress. It made progress if it stepped until Slurm took its nodes back.

        Args:
            cause: why the start ended.
        """
        if self.durable >= 0:
            return self.durable > self.counted.durable
        idle = self.step < 0 <= self.max_step
        if cause in _TAKEN_BACK and not idle:
            return True
        return made_progress(self.made, self.counted.made) if self.since_start else self.max_step > self.counted.step

    @property
    def beyond(self) -> str:
        """Say in a message where the starts without progress ended."""
        if self.since_start and self.durable < 0 <= self.made:
            return f" ({several(self.made, 'step')} in the last start)"
        reached = self.counted.durable if self.durable >= 0 else self.counted.step
        return f" beyond step {reached}" if reached >= 0 else ""

    def newer(self, step: int, since_start: bool) -> bool:
        """Whether a report of `step` changes anything. The training's own step takes precedence over a count."""
        return step > self.step or (step >= 0 and self.since_start and not since_start)

    def stepped(self, step: int, since_start: bool, made: int) -> Progress:
        """After a report of `step`. made: the most steps of a launch, where they count from the start of processes."""
        if self.since_start and not since_start:  # now the training's own step is known
            return replace(self, step=step, max_step=step, since_start=False)
        newest = replace(self, step=max(step, self.step), max_step=max(step, self.max_step), since_start=since_start)
        return replace(newest, made=max(made, self.made)) if since_start else newest

    def new_launch(self) -> Progress:
        return replace(self, step=-1)

    def new_start(self) -> Progress:
        return replace(self, step=-1, made=-1)

    def charged(self) -> Progress:
        """The budget has judged the present start: from here on, others are compared with it too."""
        known = self.counted
        step = known.step if self.since_start else max(self.max_step, known.step)
        made = self.made if self.made >= 0 else known.made
        return replace(self, counted=Counted(step, made, max(self.durable, known.durable)))

    def back_to(self, step: int) -> Progress:
        """Before a start that continues from an older checkpoint: what was reached beyond it no longer counts."""
        return Progress(max_step=min(self.max_step, step), durable=step, counted=Counted(step, -1, step))


def made_progress(made: int, before: int) -> bool:
    """Judge a start by its length.

    made: its steps, -1: none. before: the steps of the last start that made any, -1: no start did.
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
