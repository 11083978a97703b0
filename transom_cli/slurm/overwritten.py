"""Starts that Slurm 22.05 wrote over each other in accounting, known apart again. Pure.

A shrink ends a job's record (RESIZING) and opens another one. When the job is requeued then, 22.05 goes on with that
record: it takes the next start's end, beside a record of the next start that stays open, or in its place. A job runs
once at a time, so the one shows by what overlaps; the other by attempts that began when nothing should have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from transom_cli.slurm.port import JobState, Start


def untangled(starts: Iterable[Start]) -> list[Start]:
    """Those of one job, in order: one that overlaps the next is cut at its shrink, its end is the next's."""
    found: list[Start] = []
    for start in starts:
        before = found[-1] if found else None
        cut = _overlaps(before, start) if before is not None else None
        if before is not None and cut is not None:
            found[-1] = _cut(before, cut)
            start = _with_end(start, before) if start.ended is None else start
        found.append(start)
    return found


def apart(start: Start, begins: Sequence[float], early: float) -> list[Start]:
    """One start, or those that were written into it: the last one has its end, the first one its nodes.

    begins: when attempts of its job began, in the order of time, by a clock that may be `early` by so many seconds.
    """
    if start.began is None or not start.resized:
        return [start]
    end = float("inf") if start.ended is None else start.ended
    here = [at for at in begins if start.began - early <= at <= end]
    between = ([m for m in start.resized if before <= m <= at] for before, at in pairwise(here))
    parts = [start]
    for shrinks in between:
        if shrinks:
            parts[-1:] = [_cut(parts[-1], shrinks[-1]), replace(start, began=shrinks[-1], nodes=())]
    return parts


def _overlaps(start: Start, following: Start) -> float | None:
    """When `start` was last shrunk, if it seems to go on after `following` began."""
    at = following.began
    if at is None or (start.ended is not None and start.ended <= at):
        return None
    return max((m for m in start.resized if m <= at), default=None)


def _cut(start: Start, at: float) -> Start:
    """Up to its shrink: nothing is kept of how it ended (UNKNOWN)."""
    earlier = tuple(m for m in start.resized if m < at)
    over = replace(start, state=JobState.UNKNOWN, exit_code=None, exit_signal=None, by=None)
    return replace(over, ended=at, resized=earlier)


def _with_end(start: Start, of: Start) -> Start:
    told = replace(start, state=of.state, exit_code=of.exit_code, exit_signal=of.exit_signal)
    return replace(told, ended=of.ended, by=of.by)
