"""Chooses what `transom prune` removes. Pure: the command reads what is there, and removes what was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StoredRun:
    """A run directory of ours that could be removed."""

    run_id: str
    ended: float  # when the run ended (Unix time)
    size: int  # bytes of the whole directory, with its checkpoints
    # (step, bytes) of the checkpoints in the directory that are complete, oldest first
    checkpoints: tuple[tuple[int, int], ...] = ()
    removable: bool = True  # False keeps it, whatever the limits are


@dataclass(frozen=True)
class Limits:
    """What to remove. A run is old enough if each limit on age and number that is given says so."""

    ended_before: float | None = None  # only runs that ended before this (Unix time)
    newest: int | None = None  # the newest runs that are never removed
    # bytes: of the runs that may be removed, the oldest ones until all of ours take no more than this
    size: int | None = None
    last_checkpoints: bool = False  # also the last checkpoint of a run


@dataclass(frozen=True)
class Removal:
    """What to remove of a run: the steps of these checkpoints, or with `whole` the directory."""

    run_id: str
    whole: bool
    steps: tuple[int, ...]
    freed: int  # bytes
    last: int | None  # the step of its last checkpoint, which stays or goes with the directory; None if it has none


def choose(runs: Sequence[StoredRun], limits: Limits, other_bytes: int = 0) -> tuple[Removal, ...]:
    """Return what to remove, the oldest run first.

    A run with checkpoints keeps its directory and the last checkpoint, unless `limits.last_checkpoints` says otherwise.

    Args:
        other_bytes: Of our runs that are not in `runs`, such as live ones.
    """
    newest_first = sorted(runs, key=lambda run: (run.ended, run.run_id), reverse=True)
    total = other_bytes + sum(run.size for run in runs)
    removals = []
    for run in reversed(newest_first[limits.newest or 0 :]):
        if not run.removable or (limits.ended_before is not None and run.ended >= limits.ended_before):
            continue
        if limits.size is not None and total <= limits.size:
            break
        removal = _removal(run, last=limits.last_checkpoints)
        if removal is not None:
            removals.append(removal)
            total -= removal.freed
    return tuple(removals)


def _removal(run: StoredRun, *, last: bool) -> Removal | None:
    newest = run.checkpoints[-1][0] if run.checkpoints else None
    if last or newest is None:
        return Removal(run.run_id, whole=True, steps=(), freed=run.size, last=newest)
    older = run.checkpoints[:-1]
    freed = sum(size for _, size in older)
    return Removal(run.run_id, False, tuple(step for step, _ in older), freed, newest) if older else None
