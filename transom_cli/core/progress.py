"""Whether a start made progress, where its steps count from the start of its processes. Pure.

Automatic heartbeats count optimizer steps from 1 in each process. A trainer that resumed from its own checkpoint at
step 500 and made 40 steps tells the same as one that began again at step 0. So the numbers of two starts are not
compared as positions in the training. They are compared as lengths:

- Failures that have nothing to do with the training end its starts at different lengths. Such a start made progress.
- A crash loop repeats itself. A start is a repetition if it made about as many steps as the last start that made any
  (within `NEAR` steps, or 2%), or if it made `FEW` steps or less and is not the first one.

A repetition does not refill a budget, so a deterministic crash is stopped after the usual number of starts.
"""

from __future__ import annotations

FEW = 10
NEAR = 3


def made_progress(made: int, before: int) -> bool:
    """Judge a start that made `made` steps (-1: none). before: steps of the last start that made any, -1: none did."""
    if made < 0 or before < 0:
        return made >= 0
    return made > FEW and abs(made - before) > max(NEAR, before // 50)


def newest_step(known: tuple[int, bool], seen: tuple[int, bool]) -> tuple[int, bool]:
    """Of a step that is known and one that is seen now: the newer one. Each with whether it counts from the start.

    The training's own step is believed before a count.
    """
    if known[0] < 0 or seen[0] < 0:
        return seen if known[0] < 0 else known
    if known[1] == seen[1]:
        return max(known, seen)
    return seen if known[1] else known
