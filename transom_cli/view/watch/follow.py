"""Reads a run repeatedly for the live screen: no unchanged files, and not too much at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.view.model import RunView
from transom_cli.view.read import Reader, with_goodput
from transom_cli.view.read_history import TimeSeries, read_time_series

SLURM = 10.0  # seconds between two queries to Slurm
CALM = 60.0  # seconds without a new phase after which queries are as rare as that
BUDGET = 0.01  # seconds for heartbeat tables per look: each of two thousand is read every few seconds
GOODPUT = 30.0  # seconds between two accounts
SERIES, SERIES_SHARE = 30.0, 100.0  # seconds between readings of time series, or so many times what one takes
TAIL = 64 << 10  # bytes of the job's output


class Follow:
    """Reads one run. `look` may be called from any thread, but from one at a time.

    Args:
        with_slurm: Adds Slurm's answer to a view.
        patience: As in `view.read.read_view`.
    """

    def __init__(self, run: RunDir, with_slurm: Callable[[RunView], RunView], patience: float = 0.0) -> None:
        self.run = run
        self._reader = Reader(run, patience, BUDGET)
        self._with_slurm = with_slurm
        self._slurm_at, self._moved_at = float("-inf"), time.monotonic()
        self._answer: RunView | None = None
        self._phase = ""
        self._goodput_at = float("-inf")
        self._goodput: tuple[float | None, str] = (None, "")
        self._series_due = float("-inf")

    def look(self) -> RunView:
        view = self._reader.look()
        now = time.monotonic()
        if view.phase != self._phase:
            self._phase, self._moved_at = view.phase, now
        every = SLURM if now - self._moved_at < CALM else CALM
        if now - self._slurm_at >= every:
            self._slurm_at = now
            self._answer = self._with_slurm(view)
        if now - self._goodput_at >= GOODPUT or view.over:
            self._goodput_at, read = now, with_goodput(self.run, view)
            self._goodput = read.goodput, read.goodput_summary
        view = replace(view, goodput=self._goodput[0], goodput_summary=self._goodput[1])
        known = self._answer
        if known is None or known.job_id != view.job_id:
            return view
        return replace(
            view,
            slurm_queried_at=known.slurm_queried_at,
            slurm_error=known.slurm_error,
            slurm_start=known.slurm_start,
            slurm_state=known.slurm_state if known.slurm_queried_at is not None else view.slurm_state,
            slurm_reason=known.slurm_reason if known.slurm_queried_at is not None else view.slurm_reason,
        )

    def timeline(self, incident: str, width: int) -> tuple[str, ...]:
        """Return what `transom explain` prints for an incident, without its first line; () if it cannot be read."""
        from transom_cli.supervise.record_reader import read_run_record
        from transom_cli.supervise.run_record import incidents
        from transom_cli.view.timeline import build_timeline, timeline_lines

        try:
            book = read_run_record(self.run)
        except (OSError, TransomError):
            return ()
        found = next((one for one in incidents(book) if one.id == incident), None)
        return tuple(timeline_lines(build_timeline(found, book), width)[1:]) if found is not None else ()

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

    def log(self, view: RunView) -> tuple[Path, str]:
        """Return the path of the job's output and its last lines."""
        path = self.run.job_log(view.job_id)
        try:
            with path.open("rb") as file:
                start = max(0, file.seek(0, 2) - TAIL)
                file.seek(start)
                text = file.read(TAIL).decode(errors="replace")
        except OSError:
            return path, ""
        return path, text.partition("\n")[2] if start else text
