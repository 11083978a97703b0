"""What accounting has of a run's jobs, beside what the run itself knows of its attempts. Pure.

An attempt is one start of a job, and both sides may lack some: accounting loses records, and a script may end before
its launcher is up. So they are not counted, but matched in their order, by when they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transom_cli.slurm.overwritten import apart, untangled
from transom_cli.slurm.port import Start
from transom_cli.slurm.tags import is_anothers

OLDER = 3600.0  # seconds before the run: what ended then was of another job, when this one's id came round last
APART = (
    120.0  # seconds by which the clocks of controller and node may differ, with what lies before the launcher's begin
)


@dataclass(frozen=True)
class Attempt:
    """What the run knows of one start. began: seconds since the epoch; None, and no nodes, where it is not known."""

    job_id: int
    restarts: int
    began: float | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Matched:
    """starts: one for each attempt, None where accounting has none. alone: of which the run knows nothing."""

    starts: tuple[Start | None, ...]
    alone: tuple[Start, ...]


def own(starts: Sequence[Start], since: float, tag: str) -> list[Start]:
    """Each known apart, without those of other jobs to which Slurm has given the same id, before or after.

    since: when the run began, in seconds since the epoch. tag: the run's, as in `slurm.tags`.
    """
    young = (one for one in starts if (one.ended or one.began or since) >= since - OLDER)
    ours = [one for one in young if not is_anothers(one.comment, tag)]
    jobs = dict.fromkeys(one.job_id for one in ours)
    return [part for job_id in jobs for part in untangled(one for one in ours if one.job_id == job_id)]


def last_end(starts: Sequence[Start]) -> Start | None:
    """How the job that these are of ended; None where it has not, by what accounting knows."""
    return starts[-1] if starts and starts[-1].state.ended else None


def match(attempts: Sequence[Attempt], starts: Sequence[Start]) -> Matched:
    """As many pairs as can be, and of those the ones that began closest to each other.

    Attempts and starts of one job are in the order of time, and so are their pairs.
    """
    begins = {
        job: sorted(a.began for a in attempts if a.job_id == job and a.began is not None)
        for job in {one.job_id for one in attempts}
    }
    starts = [part for one in starts for part in apart(one, begins.get(one.job_id, []), APART)]
    found: dict[int, Start] = {}  # by the attempt's place
    for job_id in begins:
        places = [n for n, one in enumerate(attempts) if one.job_id == job_id]
        ran = [one for one in starts if one.job_id == job_id and one.began is not None]
        found.update({places[i]: ran[j] for i, j in _pairs([attempts[n] for n in places], ran)})
    taken = {id(one) for one in found.values()}
    alone = (one for one in starts if id(one) not in taken and (one.began, one.ended) != (None, None))
    return Matched(tuple(found.get(n) for n in range(len(attempts))), tuple(alone))


def _pairs(attempts: Sequence[Attempt], starts: Sequence[Start]) -> list[tuple[int, int]]:
    if len(attempts) == len(starts) and all(_fits(a, s) for a, s in zip(attempts, starts, strict=True)):
        return [(n, n) for n in range(len(starts))]
    fits = {(i, j) for i, a in enumerate(attempts) for j, s in enumerate(starts) if _fits(a, s)}
    # best[i][j]: (pairs, - seconds apart) of the attempts from i on and the starts from j on
    best = [[(0, 0.0)] * (len(starts) + 1) for _ in range(len(attempts) + 1)]
    for i in reversed(range(len(attempts))):
        for j in reversed(range(len(starts))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1])
            if (i, j) in fits:
                best[i][j] = max(best[i][j], _joined(best[i + 1][j + 1], attempts[i], starts[j]))
    found, i, j = [], 0, 0
    while i < len(attempts) and j < len(starts):
        if (i, j) in fits and best[i][j] == _joined(best[i + 1][j + 1], attempts[i], starts[j]):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _joined(rest: tuple[int, float], attempt: Attempt, start: Start) -> tuple[int, float]:
    pairs, apart = rest
    return pairs + 1, apart - (abs(attempt.began - (start.began or 0.0)) if attempt.began is not None else 0.0)


def _fits(attempt: Attempt, start: Start) -> bool:
    """It may have begun within this start, on a node of it."""
    if attempt.began is not None and start.began is not None:
        late = attempt.began - start.began
        if late < -APART or (start.ended is not None and attempt.began > start.ended + APART):
            return False
    return not attempt.nodes or not start.nodes or not set(attempt.nodes).isdisjoint(start.nodes)
