"""The marker that a training has saved something, so that its loss is never mistaken for a first start.

Snapshots in memory leave no trace when their nodes are gone, and a checkpoints directory may be missing altogether (a
file system that is not mounted). The marker is kept in the directory (`.saved`), and under transom also in the run
directory.

Rank 0 of the newest launch writes it after its first commit, then at most once a minute, since the file systems are
shared. So a marker names a step, and later ones may have been saved. Standard library only.
"""

import contextlib
import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from transom_cli.ckpt.names import SAVED
from transom_cli.files import publish_text
from transom_cli.heartbeat import paths
from transom_cli.layout import RunDir

SCHEMA = 1
EVERY = 60.0  # seconds between two writes
PATIENCE = 2.0  # seconds for a write: no save waits for a file system that does not respond
_LIMIT = 1 << 20  # bytes of a file that are read


@dataclass(frozen=True)
class SavedMarker:
    """attempt: the launch that saved the step. nodes: whose memory held it. wall: seconds since the epoch."""

    step: int
    attempt: str
    nodes: tuple[str, ...]
    wall: float = 0.0


class MarkerWriter:
    """Writes the marker. For one thread at a time. A marker that cannot be written is left out."""

    def __init__(self, directory: Path, attempt: str, nodes: tuple[str, ...]) -> None:
        self._directory, self._attempt, self._nodes = directory, attempt, nodes
        self._next: float | None = None

    def note(self, step: int) -> None:
        """`step` is committed: all of its shares are held."""
        now = time.monotonic()
        if self._next is not None and now < self._next:
            return
        self._next = now + EVERY
        text = (
            json.dumps({"schema": SCHEMA, **asdict(SavedMarker(step, self._attempt, self._nodes, time.time()))}) + "\n"
        )
        thread = threading.Thread(target=_write, args=(marker_paths(self._directory), text), daemon=True)
        thread.start()
        thread.join(PATIENCE)


def _write(there: tuple[Path, ...], text: str) -> None:
    for path in there:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            publish_text(path, text)


def marker_paths(directory: Path) -> tuple[Path, ...]:
    """Where the marker of that training is kept."""
    run = os.environ.get(paths.RUN_DIR)
    return (directory / SAVED, *([RunDir(Path(run)).saved(directory)] if run else []))


def read(directory: Path) -> SavedMarker | None:
    """The newest marker; None if there is none. One that cannot be read is of step 0 by "unknown"."""
    found = [one for path in marker_paths(directory) if (one := _read(path)) is not None]
    return max(found, key=lambda one: one.wall, default=None)


def forget(directory: Path) -> None:
    """Remove the marker: the training starts over on purpose. Raises OSError."""
    for path in marker_paths(directory):
        path.unlink(missing_ok=True)


def _read(path: Path) -> SavedMarker | None:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_LIMIT))
        return SavedMarker(
            int(data["step"]), str(data["attempt"]), tuple(str(node) for node in data["nodes"]), float(data["wall"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return SavedMarker(0, "unknown", ())
