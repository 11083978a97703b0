"""Whether a training's saves fail, and why: rank 0 writes it to `saves.json` in the attempt's directory.

Written at the first good save of a launch and whenever it changes, in a thread of its own: no save waits for it. The
file remains when the job ends.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.ckpt.failures import CUT_OFF
from transom_cli.ckpt.tiers.mirror import Uploads
from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.errors import printable
from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.heartbeat.local_table import own_attempt
from transom_cli.layout import AttemptDir

SCHEMA = 1
LONGEST = 400  # characters of an error


@dataclass(frozen=True)
class SaveStatus:
    """failed: number of saves that failed in a row; 0: the last was good. step: of the last that failed. good: step of
    the newest good one; -1: none. since: when the first of them failed (wall clock, s). launch: within the attempt.
    """

    failed: int = 0
    step: int = -1
    why: str = ""
    good: int = -1
    since: float = 0.0
    launch: int = 0


def encode(trainings: Mapping[str, SaveStatus]) -> str:
    """Return the file's text. `trainings`: by checkpoints directory, since a process may have several Checkpointers."""
    statuses = {directory: plain(saves) for directory, saves in trainings.items()}
    return json.dumps({"schema": SCHEMA, "trainings": statuses}) + "\n"


def worst(text: str) -> SaveStatus | None:
    """Return the status with most failures in the file; None if there is none.

    One save that lost the connection to another rank is no failure: that rank has ended, which is an incident of its
    own. A connection that is broken at the next save, too, is one.
    """
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            return None
        found = [_shown(build(SaveStatus, saves)) for saves in data["trainings"].values()]
    except (BadRecord, ValueError, KeyError, TypeError, AttributeError):
        return None
    found = [replace(one, failed=0) if one.failed == 1 and CUT_OFF in one.why else one for one in found]
    return max(found, key=lambda saves: saves.failed, default=None)


def _shown(saves: SaveStatus) -> SaveStatus:
    """Make the error text safe for a terminal."""
    why = printable(" ".join(saves.why.split()))
    return replace(saves, why=why if len(why) <= LONGEST else why[: LONGEST - 3] + "...")


PATIENCE = 5.0  # seconds that close() waits for the last write
IN_MEMORY, ON_DISK, COPIED = (
    "memory",
    "disk",
    "object storage",
)  # goals of a save; failures in a row are counted for each

_lock = threading.Lock()  # protects _statuses
_statuses: dict[Path, dict[str, SaveStatus]] = {}  # by file and checkpoints directory, of all Checkpointers
_writing = threading.Lock()


class StatusReporter:
    """Writes the status. For any thread. Does nothing on other ranks, and outside a run."""

    def __init__(self, directory: Path, *, first: bool) -> None:
        attempt = _attempt() if first else None
        self._path = None if attempt is None else attempt.saves
        self._name = str(directory)
        self._failed: dict[str, SaveStatus] = {}  # by goal
        self._good = dict.fromkeys((IN_MEMORY, ON_DISK, COPIED), -1)
        self._last: threading.Thread | None = None

    def began(self, step: int, *, durable: bool) -> None:
        """Training resumes from `step`, which is good."""
        self._good[IN_MEMORY] = step
        self._good[ON_DISK] = step if durable else -1

    def good(self, what: str, step: int) -> None:
        with _lock:
            self._failed.pop(what, None)
            self._good[what] = max(step, self._good[what])
            self._tell()

    def failed(self, what: str, step: int, why: str) -> None:
        with _lock:
            before = self._failed.get(what, SaveStatus(since=time.time()))
            count = before.failed + 1
            self._failed[what] = replace(before, failed=count, step=step, why=why, good=self._good[what])
            self._tell()

    def mirrored(self, outcome: Uploads) -> None:
        """Report what became of the uploads to object storage. failures: in a row, as the daemon has counted them."""
        if not outcome.failed:
            if outcome.good > self._good[COPIED]:
                self.good(COPIED, outcome.good)
            return
        with _lock:
            before = self._failed.get(COPIED, SaveStatus(since=time.time()))
            self._good[COPIED] = outcome.good
            why = f"not copied to object storage: {outcome.why}"
            self._failed[COPIED] = replace(before, failed=outcome.failed, step=outcome.step, why=why, good=outcome.good)
            self._tell()

    def close(self) -> None:
        if self._last is not None:
            self._last.join(PATIENCE)

    def _tell(self) -> None:
        if self._path is None:
            return
        fails = max(self._failed.values(), key=lambda saves: saves.failed, default=SaveStatus())
        now = replace(fails, launch=paths.own_launch())
        statuses = _statuses.setdefault(self._path, {})
        if statuses.get(self._name) == now:
            return
        statuses[self._name] = now
        self._last = threading.Thread(target=_write, args=(self._path,), name="transom-saves", daemon=True)
        self._last.start()


def _write(path: Path) -> None:
    """Write the newest status, in a thread of its own: a file system that hangs blocks no save."""
    with _writing:
        with _lock:
            text = encode(_statuses[path])
        with contextlib.suppress(OSError):
            make_private(path.parent)
            publish_text(path, text)


def _attempt() -> AttemptDir | None:
    if not (os.environ.get(paths.ATTEMPT_DIR) or os.environ.get(paths.RUN_DIR)):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        return own_attempt()
    return None
