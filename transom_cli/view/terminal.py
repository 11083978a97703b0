"""Output to a terminal: colours, width, `watch(1)`, and progress of long operations."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import printable
from transom_cli.view.text import Line, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.text import Text

STYLES = {
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "note": "cyan",
    "strong": "bold",
    "dim": "dim",
}
_CODES = {"green": "32", "yellow": "33", "bold red": "1;31", "cyan": "36", "bold": "1", "dim": "2"}  # ECMA-48 SGR
NOTE = "note: `transom attach {run}` redraws itself, without a new process each time"
PATIENCE = 2.0  # seconds before progress is shown
_ANCESTORS = 4  # processes to search for watch: itself, a shell, and a few between

# --- colours ---

no_colours = False  # `--no-color`: not in the environment, which a job of this command would inherit


def coloured(environ: Mapping[str, str]) -> bool:
    """Whether to write colours to stdout."""
    plain_terminal = no_colours or environ.get("TERM", "") in ("", "dumb") or bool(environ.get("NO_COLOR"))
    return not plain_terminal and sys.stdout.isatty()


def text_of(lines: Iterable[Line]) -> Text:
    """Convert lines to a rich text."""
    from rich.text import Text

    made = Text(no_wrap=True, overflow="ignore", end="")
    for i, one in enumerate(lines):
        made.append("\n" * bool(i))
        for text, tone in one:
            made.append(text, STYLES.get(tone, ""))
    return made


def painted(one: Line) -> str:
    """Return the line with ANSI codes. rich is not used here: its import takes longer than reading a run."""
    return "".join(f"\x1b[{_CODES[STYLES[tone]]}m{text}\x1b[0m" if tone else text for text, tone in one)


def show(lines: Iterable[Line]) -> None:
    """Print lines to stdout, in colour if it is a terminal that supports it."""
    as_text = painted if coloured(os.environ) else plain
    print("\n".join(as_text(one) for one in lines))


def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, no_color=no_colours or None)


# --- width ---


def width() -> int | None:
    """Return the width of stdout in columns; None for a pipe. `watch` passes its own width in COLUMNS."""
    import shutil

    if sys.stdout.isatty() or (under_watch() and os.environ.get("COLUMNS", "").isdecimal()):
        return shutil.get_terminal_size((80, 24)).columns
    return None


def under_watch() -> bool:
    """Whether an ancestor process is `watch`, which shows what is printed."""
    if sys.stdout.isatty():
        return False
    pid = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            name, rest = _stat(pid)
        except (OSError, ValueError, IndexError):
            return False
        if name == "watch":
            return True
        pid = int(rest.split()[1])
    return False


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's name, and the fields after it in /proc/PID/stat."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 1 :]


# --- progress ---


class Waiting:
    """Progress of an operation. total: Number of parts, or bytes; None if unknown."""

    def __init__(self, message: str, total: int | None, *, of_bytes: bool) -> None:
        self._message, self._total, self._of_bytes, self._done = message, total, of_bytes, 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._over = False
        self._lock = threading.Lock()

    def step(self, message: str = "") -> None:
        """Count one part as done. message: the next part."""
        self.add(1, message)

    def add(self, count: int, message: str = "") -> None:
        """Count more as done."""
        with self._lock:
            self._done += count
            self._message = message or self._message
            if self._bar is not None:
                bar, task = self._bar
                bar.update(task, completed=self._done, total=self._total, description=printable(self._message))

    def expect(self, total: int) -> None:
        """Set the total once it is known."""
        self._total = total
        self.add(0)

    def show(self) -> None:
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
        bar = Progress(*columns, console=error_console(), transient=True)
        with self._lock:
            if self._over:
                return
            self._bar = bar, bar.add_task(printable(self._message), total=self._total, completed=self._done)
            bar.start()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar[0].stop()


@contextmanager
def waiting(
    message: str, total: int | None = None, *, of_bytes: bool = False, in_pipe: bool = False
) -> Iterator[Waiting]:
    """Show progress on stderr of what takes longer than `PATIENCE`, if that is a terminal; erase it at the end.

    in_pipe: where it is no terminal, print the message once instead.
    """
    shown = Waiting(message, total, of_bytes=of_bytes)
    timer = threading.Timer(PATIENCE, shown.show) if sys.stderr.isatty() else None
    if timer is None and in_pipe:
        timer = threading.Timer(PATIENCE, partial(print, printable(message), file=sys.stderr, flush=True))
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield shown
    finally:
        if timer is not None:
            timer.cancel()
        shown.end()
