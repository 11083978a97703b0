"""Where a screen goes: how wide it may be, and whether `watch(1)` shows it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

NOTE = "note: `transom attach {run}` redraws itself, without a new process each time"
_ANCESTORS = 4  # watch, a shell, and what a shell may have put between


def width(environ: Mapping[str, str], *, watched: bool) -> int | None:
    """Columns; None for a pipe, where nothing is cut. `watch` says in COLUMNS how many it has."""
    if watched and environ.get("COLUMNS", "").isdecimal():
        return int(environ["COLUMNS"])
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else None


def under_watch() -> bool:
    """Whether one of the processes above this one is `watch`, and shows what is printed here."""
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
    """A process's name, and what stands after it in /proc: state, parent, ..."""
    told = Path(f"/proc/{pid}/stat").read_text()
    return told[told.index("(") + 1 : told.rindex(")")], told[told.rindex(")") + 1 :]
