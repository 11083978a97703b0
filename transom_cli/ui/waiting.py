"""What takes longer than two seconds says so: a line on stderr, with the time, where that is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transom_cli.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 2.0  # seconds


class Waiting:
    """`total`: how many parts there are; None where that says nothing."""

    def __init__(self, words: str, total: int | None) -> None:
        self._words, self._total, self._done = words, total, 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._over = False
        self._lock = threading.Lock()

    def step(self, words: str = "") -> None:
        """A part is done. words: what comes next."""
        with self._lock:
            self._done += 1
            self._words = words or self._words
            if self._bar is not None:
                self._bar[0].update(self._bar[1], completed=self._done, description=printable(self._words))

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        counted = (BarColumn(), MofNCompleteColumn()) if self._total else ()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *counted, TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        with self._lock:
            if self._over:
                return
            self._bar = bar, bar.add_task(printable(self._words), total=self._total, completed=self._done)
            bar.start()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar[0].stop()


@contextmanager
def waiting(words: str, total: int | None = None) -> Iterator[Waiting]:
    """Around what may take long. Nothing is left of it on the screen afterwards, and a pipe never sees it."""
    shown = Waiting(words, total)
    timer = threading.Timer(PATIENCE, shown.show) if sys.stderr.isatty() else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield shown
    finally:
        if timer is not None:
            timer.cancel()
        shown.end()
