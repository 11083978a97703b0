"""Reports that the operator's run directory does not respond; the loop itself hangs in it meanwhile.

The loop does not act on what it cannot record, so it waits until the files are back. The poller continues, and its
events wait in the loop's inbox. If the operator's log is in the run directory, messages go to syslog.
"""

import logging
import os
import stat
import sys
import syslog
import time
from collections.abc import Callable
from functools import partial

from transom_cli.core.events import Event
from transom_cli.core.operator.state import State
from transom_cli.layout import RunDir
from transom_cli.notify.events import Notification, answered, unanswered
from transom_cli.supervise.answering import PATIENCE, Answering, Folders

log = logging.getLogger("transom.operator")

TOLD = 60.0  # seconds of silence before people are notified: a server failover takes some


class RunDirWatch:
    """A Observer (supervise.operator), which asks the run directory's file system on its own."""

    def __init__(
        self,
        run: RunDir,
        tell: Callable[[Notification], object],
        elsewhere: Callable[[str], object] | None = None,
        patience: float = PATIENCE,
        told_after: float = TOLD,
        folders: Folders | None = None,
    ) -> None:
        """Start to watch.

        Args:
            elsewhere: writes words where that cannot hang; None: on stderr, or to syslog if that is in the directory.
            folders: asks the file system for many runs; None: this run asks for itself.
        """
        self._run, self._tell, self._told_after = run, tell, told_after
        to_syslog = partial(syslog.syslog, syslog.LOG_WARNING)
        self._elsewhere = elsewhere or (to_syslog if _log_is_in(run) else _to_stderr)
        self._state = State()
        self._since = 0.0
        self._told = False
        self._folders = folders
        self._answering = Answering(run.path, self._lost, self._back, self._still, patience)
        if folders is not None:
            folders.add(self._answering)
        else:
            self._answering.start()

    def seen(self, before: State, event: Event, after: State) -> None:
        self._state = after

    def close(self) -> None:
        self._answering.stop()
        if self._folders is not None:
            self._folders.remove(self._answering)

    def _lost(self, since: float) -> None:
        self._since, self._told = since, False
        at = time.strftime("%H:%M:%S", time.localtime(since))
        self._elsewhere(f"transom operator of {self._run.run_id}: {self._run.path} does not answer since {at}; waiting")

    def _still(self, seconds: float) -> None:
        if seconds >= self._told_after and not self._told:
            self._told = True
            self._tell(unanswered(self._state, self._since, time.time()))

    def _back(self, seconds: float) -> None:
        words = f"{self._run.path} answers again, after {seconds:.0f} s"
        self._elsewhere(f"transom operator of {self._run.run_id}: {words}")
        log.warning("%s; what has come meanwhile is looked at now", words)
        if self._told:
            self._tell(answered(self._state, self._since, time.time()))


def _log_is_in(run: RunDir) -> bool:
    """Whether what this process says goes to a file on the run directory's file system."""
    try:
        there = os.fstat(sys.stderr.fileno())
        return stat.S_ISREG(there.st_mode) and there.st_dev == run.path.stat().st_dev
    except (OSError, ValueError):
        return False


def _to_stderr(words: str) -> None:
    os.write(2, f"{words}\n".encode())
