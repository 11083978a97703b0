"""The record that a training has saved something, so that its loss is never taken for a first start.

Snapshots in memory leave no trace when their nodes are gone, and a checkpoints directory may be missing altogether (a
file system that is not mounted). The record is kept in the directory (`.saved`), and in the run's own under transom.

The files' writer is rank 0 of the newest launch: after its first commit, and then at most once a minute, since the
file systems are shared. So a record names a step, and later ones may have been saved. Standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from transom_cli.ckpt.names import SAVED
from transom_cli.files import publish_text
from transom_cli.heartbeat import places
from transom_cli.layout import RunDir

SCHEMA = 1
EVERY = 60.0  # seconds between two writes
_LIMIT = 1 << 20  # bytes of a file that are read


@dataclass(frozen=True)
class Recorded:
    """attempt: the launch that saved the step. nodes: in whose memory it was. wall: seconds since the epoch."""

    step: int
    attempt: str
    nodes: tuple[str, ...]
    wall: float = 0.0


class Recorder:
    """For one thread at a time. What cannot be written costs nothing but the record."""

    def __init__(self, directory: Path, attempt: str, nodes: tuple[str, ...]) -> None:
        self._directory, self._attempt, self._nodes = directory, attempt, nodes
        self._next: float | None = None

    def note(self, step: int) -> None:
        """`step` counts: all of its shares are held, and its record is committed."""
        now = time.monotonic()
        if self._next is not None and now < self._next:
            return
        self._next = now + EVERY
        text = json.dumps({"schema": SCHEMA, **asdict(Recorded(step, self._attempt, self._nodes, time.time()))}) + "\n"
        for path in paths(self._directory):
            with contextlib.suppress(OSError):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                publish_text(path, text)


def paths(directory: Path) -> tuple[Path, ...]:
    """Where the record of that training is kept."""
    run = os.environ.get(places.RUN_DIR)
    return (directory / SAVED, *([RunDir(Path(run)).saved(directory)] if run else []))


def read(directory: Path) -> Recorded | None:
    """The newest record; None where there is none. One that cannot be read is of step 0 by "unknown"."""
    found = [one for path in paths(directory) if (one := _read(path)) is not None]
    return max(found, key=lambda one: one.wall, default=None)


def forget(directory: Path) -> None:
    """The training begins again on purpose. Raises OSError."""
    for path in paths(directory):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Recorded | None:
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(_LIMIT))
        return Recorded(
            int(told["step"]), str(told["attempt"]), tuple(str(node) for node in told["nodes"]), float(told["wall"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return Recorded(0, "unknown", ())
