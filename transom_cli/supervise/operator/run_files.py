"""Keeps the files that a run needs safe from a purge of old files, and writes them again if they are gone.

Scratch file systems delete what nobody has used for weeks. `transom list`, the next attempt and the next operator need
files that were written when the run began. The operator refreshes their times once a day, and remembers their content.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transom_cli.files import make_private, publish_bytes
from transom_cli.layout import AttemptDir, RunDir

LOOK = 300.0  # seconds between two looks
DAY = 86_400.0  # age in seconds at which a file's times are refreshed


class RunFiles:
    """Files of the run, which have no writer any more, and of the present attempt. epoch: of this operator."""

    def __init__(self, run: RunDir, epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._content: dict[Path, bytes] = {run.epochs / str(epoch): b""}
        self._due = float("-inf")

    def look(self, attempt: AttemptDir | None = None, *, at_once: bool = False) -> tuple[str, ...]:
        """Refresh what is a day old, and restore what is gone. Returns the names of the restored files.

        Looks every few minutes, or `at_once`. Without its journal the run was deleted by its user, and stays so.
        """
        now = self._clock()
        if now < self._due and not at_once:
            return ()
        self._due = now + LOOK
        old = time.time() - DAY
        if not _refreshed(self._run.journal, old):
            return ()
        run = self._run
        for path in (run.settings, run.script, run.submission, run.secret, run.operator_script):
            self._remember(path)
        gone = [path for path in self._content if not _refreshed(path, old)]
        for path in _of_attempt(attempt) if attempt is not None else ():
            _refreshed(path, old)
        return tuple(str(path.relative_to(run.path)) for path in gone if self._restored(path))

    def _remember(self, path: Path) -> None:
        if path not in self._content:
            try:
                self._content[path] = path.read_bytes()
            except OSError:
                return  # there is none, or none yet

    def _restored(self, path: Path) -> bool:
        private = path not in (self._run.settings, self._run.submission)
        try:
            make_private(path.parent)
            publish_bytes(path, self._content[path], private=private)
        except OSError:
            return False  # the next look tries again
        return True


def _of_attempt(attempt: AttemptDir) -> Iterator[Path]:
    """Yield what launcher and agents write once per attempt, and read until its end."""
    yield from (attempt.path, attempt.peers, attempt.beats_suffix)
    try:
        yield from attempt.nodes.glob("*.endpoint")
    except OSError:
        return


def _refreshed(path: Path, old: float) -> bool:
    """Return False if the file is gone. Give it the present time if it is older than `old`."""
    try:
        if path.stat(follow_symlinks=False).st_mtime < old:
            os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # that is not known now
    return True
