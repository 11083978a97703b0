"""The summary of a run that is over: one small file, so that `transom list` need not read the run's directory.

The operator writes it when the run ends. `transom list` writes it for runs that ended without one.
"""

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from transom_cli.core.bad_loss import BadLoss
from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.core.events import Event
from transom_cli.core.journal_times import JournalTimes
from transom_cli.core.operator.state import Phase, SavesFail, State
from transom_cli.core.progress import newest_step
from transom_cli.files import replace_text
from transom_cli.heartbeat.table import BadTable, RankBeat, decode, reached
from transom_cli.layout import RunDir
from transom_cli.supervise.attempt_files import bad_loss_of, saves_fail

LARGEST = 64 << 10  # bytes that are read
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # it may be somebody else's: a pipe, a link


@dataclass(frozen=True)
class RunSummary:
    """A run that is over, as `transom list` shows it. Moments are Unix time; the fields are those of `State`."""

    phase: Phase
    since: float
    submitted: float | None
    job_id: int
    restarts: int
    starts: int
    step: int
    steps_since_start: bool
    durable: int
    verdict: str
    exit_code: int | None
    saves_fail: SavesFail | None
    observed: bool = False
    bad_loss: BadLoss | None = None  # as `RunView.bad_loss`


def write_summary(run: RunDir, state: State, submitted: float | None, *, keep: bool = True) -> RunSummary:
    """Return the summary of a run whose state is final. With `keep`, write it; a failure to write is ignored."""
    job, progress = state.job, state.progress
    step, since_start = _last_step(run, state)
    summary = RunSummary(
        phase=state.phase,
        since=state.since,
        submitted=submitted,
        job_id=job.id,
        restarts=job.restarts,
        starts=job.starts,
        step=step,
        steps_since_start=since_start and step >= 0,
        durable=progress.durable,
        verdict=" ".join(state.verdict.split())[:4096],
        exit_code=state.exit_code,
        saves_fail=saves_fail(run, state),
        observed=state.policy.observe,
        bad_loss=bad_loss_of(run) if job.id else None,
    )
    if keep:
        with contextlib.suppress(OSError):
            replace_text(run.summary, json.dumps(plain(summary)) + "\n")
    return summary


def _last_step(run: RunDir, state: State) -> tuple[int, bool]:
    """Return the newest step, from the journal and the last heartbeat tables, and whether it counts from the start."""
    progress, ranks = state.progress, list[RankBeat]()
    nodes = run.attempt(state.job.id, state.job.restarts).nodes
    for path in nodes.glob("*.beats") if state.job.id else ():
        with contextlib.suppress(OSError, BadTable):
            ranks += decode(path.read_bytes()).ranks
    launch = max((r.launch for r in ranks), default=0)
    seen = reached(r for r in ranks if r.launch == launch)
    step, since_start = newest_step((progress.step, progress.since_start), seen)
    return (step, since_start) if since_start else (max(step, progress.max_step), False)


def read_summary(folder: Path) -> tuple[RunSummary, int] | None:
    """Return the summary of the run in `folder` and the user ID of its owner; None if there is none to read."""
    try:
        descriptor = os.open(RunDir(folder).summary, _READ)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        data = os.read(descriptor, LARGEST) if stat.S_ISREG(status.st_mode) else b""
        found = build(RunSummary, json.loads(data))
    except (OSError, ValueError, TypeError, BadRecord):
        return None
    finally:
        os.close(descriptor)
    return (found, status.st_uid) if found.phase.over else None


class SummaryWriter:
    """An `Observer` of the operator that writes the summary when the run ends."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._times = run, JournalTimes()

    def seen(self, before: State, event: Event, after: State) -> None:
        self._times.hear(event, after.attempt)
        if after.phase.over and not before.phase.over:
            write_summary(self._run, after, self._times.submitted)
        elif before.phase.over and not after.phase.over:  # resumed: `transom list` reads a summary first
            with contextlib.suppress(OSError):
                self._run.summary.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is kept open."""
