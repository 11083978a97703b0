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
    """`total`: how many parts there are, or bytes; None where that says nothing, or is not known yet."""

    def __init__(self, words: str, total: int | None, *, of_bytes: bool) -> None:
        self._words, self._total, self._of_bytes, self._done = words, total, of_bytes, 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._over = False
        self._lock = threading.Lock()

    def step(self, words: str = "") -> None:
        """A part is done. words: what comes next."""
        self.add(1, words)

    def add(self, count: int, words: str = "") -> None:
        """So many more are done."""
        with self._lock:
            self._done += count
            self._words = words or self._words
            if self._bar is not None:
                bar, task = self._bar
                bar.update(task, completed=self._done, total=self._total, description=printable(self._words))

    def expect(self, total: int) -> None:
        """It is known now how many there are."""
        self._total = total
        self.add(0)

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )  # fmt: skip

        count = DownloadColumn(binary_units=True) if self._of_bytes else MofNCompleteColumn()
        counted = (BarColumn(), count) if self._total or self._of_bytes else ()
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
def waiting(words: str, total: int | None = None, *, of_bytes: bool = False) -> Iterator[Waiting]:
    """Around what may take long. Nothing is left of it on the screen afterwards, and a pipe never sees it."""
    shown = Waiting(words, total, of_bytes=of_bytes)
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
