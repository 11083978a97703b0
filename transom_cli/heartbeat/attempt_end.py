"""Whether an attempt is over. Checked rarely, since the daemons of thousands of nodes do so."""

from __future__ import annotations

import enum
from pathlib import Path

from transom_cli.layout import AttemptDir

EVERY = 1.0  # seconds between two checks
VANISHED = 3.0  # seconds that its directory must be missing: a network file system may lose it for a moment


class End(enum.Enum):
    NOT_YET = "not yet"
    OUTCOME = "outcome"  # its outcome is written
    VANISHED = "vanished"  # its directory is gone


class AttemptEnd:
    def __init__(self, attempt: AttemptDir, now: float) -> None:
        """now: seconds of the caller's clock."""
        self._attempt = attempt
        self._missing: float | None = None  # since when its directory is missing
        self._looked, self._end = float("-inf"), End.NOT_YET

    def look(self, now: float, every: float = EVERY, *, at_once: bool = False) -> End:
        """Check if the last check was `every` seconds ago, or `at_once`."""
        due = at_once or now - self._looked >= (every if self._missing is None else min(EVERY, every))
        if self._end is End.NOT_YET and due:
            self._looked = now
            self._end = self._found(now)
        return self._end

    def _found(self, now: float) -> End:
        if self._attempt.outcome.exists():
            return End.OUTCOME
        if not _removed(self._attempt.path):
            self._missing = None
        elif self._missing is None:
            self._missing = now
        return End.VANISHED if self._missing is not None and now - self._missing > VANISHED else End.NOT_YET


def _removed(path: Path) -> bool:
    """Whether the path is known not to exist: an EIO or ESTALE of a network file system is not enough."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
