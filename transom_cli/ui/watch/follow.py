"""Reads a run again and again for a screen that stays: what has not changed is not read, nor is too much at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.ui.read import Reader
from transom_cli.ui.readgoodput import with_goodput
from transom_cli.ui.view import RunView
from transom_cli.ui.watch.past import Past, read_past

SLURM = 10.0  # seconds between two questions to Slurm
CALM = 60.0  # where nothing moves
BUDGET = 0.01  # seconds for the nodes' tables of a look: of two thousand each is read every few seconds
GOODPUT = 30.0  # seconds between two accounts
PAST, PAST_SHARE = 30.0, 100.0  # seconds between two readings of the curves; and at least so often what one takes
TAIL = 64 << 10  # bytes of the job's output


class Follow:
    """`look` may be called from another thread than the screen's, from one at a time. asked: with Slurm's answer."""

    def __init__(self, run: RunDir, asked: Callable[[RunView], RunView], patience: float = 0.0) -> None:
        self.run = run
        self._reader = Reader(run, patience, BUDGET)
        self._asked = asked
        self._slurm_at, self._moved_at = float("-inf"), time.monotonic()
        self._answer: RunView | None = None
        self._phase = ""
        self._goodput_at = float("-inf")
        self._goodput: tuple[float | None, str] = (None, "")
        self._past_due = float("-inf")

    def look(self) -> RunView:
        view = self._reader.look()
        now = time.monotonic()
        if view.phase != self._phase:
            self._phase, self._moved_at = view.phase, now
        every = SLURM if now - self._moved_at < CALM else CALM
        if now - self._slurm_at >= every:
            self._slurm_at = now
            self._answer = self._asked(view)
        if now - self._goodput_at >= GOODPUT:
            self._goodput_at, told = now, with_goodput(self.run, view)
            self._goodput = told.goodput, told.goodput_words
        view = replace(view, goodput=self._goodput[0], goodput_words=self._goodput[1])
        known = self._answer
        if known is None or known.job_id != view.job_id:
            return view
        return replace(
            view,
            slurm_asked=known.slurm_asked,
            slurm_error=known.slurm_error,
            slurm_start=known.slurm_start,
            slurm_state=known.slurm_state if known.slurm_asked is not None else view.slurm_state,
            slurm_reason=known.slurm_reason if known.slurm_asked is not None else view.slurm_reason,
        )

    def story(self, incident: str, width: int) -> tuple[str, ...]:
        """What `transom explain` tells of an incident, from its second line on; () where that cannot be read now."""
        from transom_cli.supervise.book import incidents
        from transom_cli.supervise.ledger import read_book
        from transom_cli.ui.story import story_lines, story_of

        try:
            book = read_book(self.run)
        except (OSError, TransomError):
            return ()
        found = next((one for one in incidents(book) if one.id == incident), None)
        return tuple(story_lines(story_of(found, book), width)[1:]) if found is not None else ()

    def past(self) -> Past | None:
        """What curves are drawn from; None while the newest is new enough, or cannot be read."""
        began = time.monotonic()
        if began < self._past_due:
            return None
        try:
            return read_past(self.run)
        except (OSError, TransomError):
            return None
        finally:
            took = time.monotonic() - began
            self._past_due = began + max(PAST, PAST_SHARE * took)

    def log(self, view: RunView) -> tuple[Path, str]:
        """The job's output, and its end."""
        path = self.run.job_log(view.job_id)
        try:
            with path.open("rb") as file:
                start = max(0, file.seek(0, 2) - TAIL)
                file.seek(start)
                text = file.read(TAIL).decode(errors="replace")
        except OSError:
            return path, ""
        return path, text.partition("\n")[2] if start else text
