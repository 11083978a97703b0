"""Reads a run repeatedly for the live screen: no unchanged files, and not too much at once."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.view.logs import LogFile, LogLine, RootLine, drawn, find_root, log_files
from transom_cli.view.model import RunView
from transom_cli.view.read import Reader, with_goodput
from transom_cli.view.read_history import TimeSeries, read_time_series
from transom_cli.view.slurm_reasons import asks_in_passing, needs_operator_query, needs_query, with_answer_of
from transom_cli.view.text import Line

SLURM = 10.0  # seconds between two queries to Slurm
CALM = 60.0  # seconds without a new phase after which queries are as rare as that
BUDGET = 0.01  # seconds for heartbeat tables per look: each of two thousand is read every few seconds
GOODPUT, GOODPUT_SHARE = 5.0, 50.0  # seconds between two accounts, or this many times what one takes
SERIES, SERIES_SHARE = 30.0, 100.0  # seconds between readings of time series, or this many times what one takes
OUTPUT = 2000  # lines of a rank's output


class Follow:
    """Reads one run. `look` may be called from any thread, but from one at a time.

    with_slurm: Adds Slurm's answer to a view. patience: As in `view.read.read_view`.
    """

    def __init__(self, run: RunDir, with_slurm: Callable[[RunView], RunView], patience: float = 0.0) -> None:
        self.run = run
        self._reader = Reader(run, patience, BUDGET)
        self._with_slurm = with_slurm
        self._slurm_at, self._moved_at = float("-inf"), time.monotonic()
        self._answer: RunView | None = None
        self._phase = ""
        self._goodput_due = float("-inf")
        self._goodput: tuple[float | None, str] = (None, "")
        self._series_due = float("-inf")
        self._rank: int | None = 0
        self._output: LogFile | None = None
        self._lines: deque[LogLine] = deque(maxlen=OUTPUT)
        self._root: RootLine | None = None

    def look(self) -> RunView:
        view = self._reader.look()
        now = time.monotonic()
        if view.phase != self._phase:
            self._phase, self._moved_at = view.phase, now
        every = SLURM if now - self._moved_at < CALM or asks_in_passing(view) else CALM  # answers are kept longer
        asks = needs_query(view) or needs_operator_query(view)
        if asks and now - self._slurm_at >= every:
            self._slurm_at = now
            self._answer = self._with_slurm(view)
        if now >= self._goodput_due or view.over:
            read = with_goodput(self.run, view)
            self._goodput = read.goodput, read.goodput_summary
            ended = time.monotonic()
            self._goodput_due = ended + max(GOODPUT, GOODPUT_SHARE * (ended - now))
        view = replace(view, goodput=self._goodput[0], goodput_summary=self._goodput[1])
        known = self._answer
        if not asks or known is None or (known.job_id, known.restarts) != (view.job_id, view.restarts):
            return view  # what the operator has seen is newer than the last answer
        view = replace(view, operator_state=known.operator_state, operator_reason=known.operator_reason)
        return view if known.slurm_queried_at is None else with_answer_of(view, known)

    def timeline(self, incident: str, width: int) -> tuple[str, ...]:
        """Return what `transom explain` prints for an incident; () if it cannot be read."""
        from transom_cli.supervise.record_reader import read_run_record
        from transom_cli.supervise.run_record import incidents
        from transom_cli.view.timeline import build_timeline, timeline_lines

        try:
            book = read_run_record(self.run)
        except (OSError, TransomError):
            return ()
        found = next((one for one in incidents(book) if one.id == incident), None)
        return tuple(timeline_lines(build_timeline(found, book), width)) if found is not None else ()

    def time_series(self) -> TimeSeries | None:
        """Return new time series; None if the last ones are recent enough, or the run cannot be read."""
        began = time.monotonic()
        if began < self._series_due:
            return None
        try:
            return read_time_series(self.run)
        except (OSError, TransomError):
            return None
        finally:
            took = time.monotonic() - began
            self._series_due = began + max(SERIES, SERIES_SHARE * took)

    def output(self, view: RunView, by: int = 0) -> tuple[int | None, list[Line]]:
        """Return the rank whose output is shown, and its last lines; None: there is only the job's output.

        Args:
            by: Show the output of a later or an earlier rank.
        """
        files = log_files(self.run, view)
        if not files:
            return None, []
        ranks = [file.rank for file in files]
        at = min(max(0, (ranks.index(self._rank) if self._rank in ranks else 0) + by), len(ranks) - 1)
        if self._output is None or self._output.path != files[at].path:
            self._output, self._lines, self._root = files[at], deque(maxlen=OUTPUT), find_root(self.run, view)
            self._rank = files[at].rank
        self._lines += self._output.more()
        return self._rank, [drawn(one, self._root, 0) for one in self._lines]
