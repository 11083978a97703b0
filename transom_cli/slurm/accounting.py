"""Job starts from accounting: parse `sacct`, repair overwritten records, and match starts to a run's attempts. Pure.

An attempt is one start of a job. Both sides may lack some: accounting loses records, and a script may end before its
launcher is up. So starts are not counted; they are matched to attempts in order, by the time at which they began.

Overwritten records: a shrink closes a job's record (RESIZING) and opens another. If the job is then requeued, Slurm
22.05 continues that second record: it receives the end of the next start, either beside an open record of the next
start or instead of it. A job runs once at a time, so overlapping records reveal the first case. Attempts that began
during what seems to be one start reveal the second.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from transom_cli.slurm.parse import exit_pair, parse_nodes, parse_state, unexpected_output
from transom_cli.slurm.port import JobState, SlurmUnknown, Start
from transom_cli.slurm.tags import is_other_runs, run_tag

SACCT_FORMAT = "JobIDRaw,State,ExitCode,Start,End,NodeList,SubmitLine"
SACCT_TIMES = {"SLURM_TIME_FORMAT": "%s"}  # seconds since the epoch: local times are ambiguous when DST ends

_TAGGED = run_tag("")
_SACCT = re.compile(r"^(\d+)\|([^|\n]+)\|(\d+:\d+)\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|", re.MULTILINE)

OLDER = 3600.0  # seconds before the run: a start that ended earlier belongs to an old job with the same ID
CLOCK_SKEW = 120.0  # seconds between the clocks of controller and node, including the time until the launcher begins


def parse_sacct(text: str, *job_ids: int) -> list[Start]:
    """Parse `sacct -D -X -P -n -o SACCT_FORMAT -j IDS` with SACCT_TIMES, for `Slurm.history`.

    Accounting opens a new record at each change of a job's size (RESIZING). The records of one start are merged into
    one, with all nodes that it had.

    Raises:
        SlurmUnknown: the answer is empty. Accounting learns of a job late, so this proves nothing about the job.
    """
    found: list[Start] = []
    shrunk: dict[int, Start] = {}  # by job: a start that continues in the next record
    records = list(_SACCT.finditer(text))
    if text.strip() and (not records or records[0].start() > 0):
        raise unexpected_output(text, "sacct")
    ends = (*(record.start() for record in records[1:]), len(text))
    for record, end in zip(records, ends, strict=False):
        start, resizing = _parse_start(record, text[record.end() : end])
        before = shrunk.pop(start.job_id, None)
        if before is not None and start.began is not None:
            start = _merge(before, start)
        elif before is not None:  # 22.05, while the job is pending: it reuses the record of the last start
            found.append(before)
        if resizing:
            shrunk[start.job_id] = replace(start, state=JobState.UNKNOWN)
        else:
            found.append(start)
    found = [one for one in found if one.job_id in job_ids]  # the first ID of an array stands for all its elements
    if not found:
        jobs = ",".join(map(str, job_ids))
        what = f"Accounting has no record of job {jobs} (yet)"
        raise SlurmUnknown(what, "sacct printed nothing", f"sacct -D -j {jobs}")
    return found


def _parse_start(record: re.Match[str], submitted: str) -> tuple[Start, bool]:
    """Return the start and whether the job's next record continues it. submitted: the sbatch command line."""
    job, state, exit_text, begin, end, node_list = record.groups()
    base, _ = parse_state(state)
    code, signal = exit_pair(exit_text) if base.ended else (None, None)
    began, ended = _seconds(begin), _seconds(end)
    nodes = parse_nodes(node_list, "sacct") if began is not None else ()  # 22.05 shows a pending job's old nodes
    by = re.fullmatch(r"CANCELLED by (\d+)", state)
    start = Start(int(job), base, code, signal, nodes, began if nodes else None, ended, int(by[1]) if by else None)
    comments = re.findall(r"--comment=(\S+)", submitted)  # the script's own arguments come after sbatch's options
    comment = next((one for one in comments if one.startswith(_TAGGED)), comments[0] if comments else "")
    return replace(start, comment=comment), state == "RESIZING"


def _merge(shrunk: Start, rest: Start) -> Start:
    nodes = tuple(dict.fromkeys((*shrunk.nodes, *rest.nodes)))
    at = shrunk.ended or rest.began or 0.0  # in 24.11 the new record begins where the old one did
    return replace(rest, nodes=nodes, began=shrunk.began, resized=(*shrunk.resized, at))


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and text != "0" else None


def separate_overlaps(starts: Iterable[Start]) -> list[Start]:
    """Return the starts of one job, in order, without overlaps.

    A start that overlaps the next one is cut at its last shrink, and its end is given to the next one.
    """
    found: list[Start] = []
    for start in starts:
        before = found[-1] if found else None
        cut = _overlaps(before, start) if before is not None else None
        if before is not None and cut is not None:
            found[-1] = _cut(before, cut)
            start = _with_end(start, before) if start.ended is None else start
        found.append(start)
    return found


def split_by_attempts(start: Start, begins: Sequence[float], early: float) -> list[Start]:
    """Split a start into the starts that were written into its record.

    The first part keeps the nodes, the last part keeps the end.

    Args:
        begins: when attempts of the job began, in order, on a clock that may be ahead by up to `early` seconds.
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
    """Return when `start` was last shrunk, if it seems to continue after `following` began."""
    at = following.began
    if at is None or (start.ended is not None and start.ended <= at):
        return None
    return max((m for m in start.resized if m <= at), default=None)


def _cut(start: Start, at: float) -> Start:
    """End a start at its shrink. How it ended is not known (UNKNOWN)."""
    earlier = tuple(m for m in start.resized if m < at)
    over = replace(start, state=JobState.UNKNOWN, exit_code=None, exit_signal=None, by=None)
    return replace(over, ended=at, resized=earlier)


def _with_end(start: Start, other: Start) -> Start:
    state = replace(start, state=other.state, exit_code=other.exit_code, exit_signal=other.exit_signal)
    return replace(state, ended=other.ended, by=other.by)


@dataclass(frozen=True)
class Attempt:
    """What the run knows of one start. began: seconds since the epoch, None (and no nodes) if not known."""

    job_id: int
    restarts: int
    began: float | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class MatchedStarts:
    starts: tuple[Start | None, ...]  # one for each attempt, None if accounting has none
    alone: tuple[Start, ...]  # starts that match no attempt


def own_starts(starts: Sequence[Start], since: float, tag: str) -> list[Start]:
    """Return the starts of this run's jobs, without those of other jobs that Slurm gave the same ID.

    since: when the run began, in seconds since the epoch. tag: the run's tag (`slurm.tags`).
    """
    young = (one for one in starts if (one.ended or one.began or since) >= since - OLDER)
    ours = [one for one in young if not is_other_runs(one.comment, tag)]
    jobs = dict.fromkeys(one.job_id for one in ours)
    return [part for job_id in jobs for part in separate_overlaps(one for one in ours if one.job_id == job_id)]


def last_end(starts: Sequence[Start]) -> Start | None:
    """Return the start with which the job ended, or None if accounting has no end of it."""
    return starts[-1] if starts and starts[-1].state.ended else None


def match_attempts(attempts: Sequence[Attempt], starts: Sequence[Start]) -> MatchedStarts:
    """Pair attempts with starts: as many pairs as possible, and among those the smallest time differences.

    Attempts and starts of one job are in order of time, and so are their pairs.
    """
    begins = {
        job: sorted(a.began for a in attempts if a.job_id == job and a.began is not None)
        for job in {one.job_id for one in attempts}
    }
    starts = [part for one in starts for part in split_by_attempts(one, begins.get(one.job_id, []), CLOCK_SKEW)]
    found: dict[int, Start] = {}  # by the attempt's index
    for job_id in begins:
        places = [n for n, one in enumerate(attempts) if one.job_id == job_id]
        ran = [one for one in starts if one.job_id == job_id and one.began is not None]
        found.update({places[i]: ran[j] for i, j in _pairs([attempts[n] for n in places], ran)})
    taken = {id(one) for one in found.values()}
    alone = (one for one in starts if id(one) not in taken and (one.began, one.ended) != (None, None))
    return MatchedStarts(tuple(found.get(n) for n in range(len(attempts))), tuple(alone))


def _pairs(attempts: Sequence[Attempt], starts: Sequence[Start]) -> list[tuple[int, int]]:
    if len(attempts) == len(starts) and all(_fits(a, s) for a, s in zip(attempts, starts, strict=True)):
        return [(n, n) for n in range(len(starts))]
    fits = {(i, j) for i, a in enumerate(attempts) for j, s in enumerate(starts) if _fits(a, s)}
    # best[i][j]: (pairs, -seconds of difference) for attempts[i:] and starts[j:]
    best = [[(0, 0.0)] * (len(starts) + 1) for _ in range(len(attempts) + 1)]
    for i in reversed(range(len(attempts))):
        for j in reversed(range(len(starts))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1])
            if (i, j) in fits:
                best[i][j] = max(best[i][j], _add_pair(best[i + 1][j + 1], attempts[i], starts[j]))
    found, i, j = [], 0, 0
    while i < len(attempts) and j < len(starts):
        if (i, j) in fits and best[i][j] == _add_pair(best[i + 1][j + 1], attempts[i], starts[j]):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _add_pair(rest: tuple[int, float], attempt: Attempt, start: Start) -> tuple[int, float]:
    pairs, closeness = rest
    difference = abs(attempt.began - (start.began or 0.0)) if attempt.began is not None else 0.0
    return pairs + 1, closeness - difference


def _fits(attempt: Attempt, start: Start) -> bool:
    """Return whether the attempt may have begun within this start, on one of its nodes."""
    if attempt.began is not None and start.began is not None:
        late = attempt.began - start.began
        if late < -CLOCK_SKEW or (start.ended is not None and attempt.began > start.ended + CLOCK_SKEW):
            return False
    return not attempt.nodes or not start.nodes or not set(attempt.nodes).isdisjoint(start.nodes)
