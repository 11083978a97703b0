"""Whether an attempt is over, for what runs beside it on its nodes: looked at seldom, as thousands of nodes do so."""

from __future__ import annotations

import enum
from pathlib import Path

from transom_cli.layout import AttemptDir

EVERY = 1.0  # seconds between two looks
VANISHED = 3.0  # seconds that its folder must be missing: a network file system may lose it for a moment


class End(enum.Enum):
    NOT_YET = "not yet"
    OUTCOME = "outcome"  # its outcome stands
    VANISHED = "vanished"  # its folder is gone


class AttemptEnd:
    def __init__(self, attempt: AttemptDir, now: float) -> None:
        """now: of the caller's clock, seconds."""
        self._attempt = attempt
        self._seen, self._looked, self._end = now, float("-inf"), End.NOT_YET

    def look(self, now: float) -> End:
        if self._end is End.NOT_YET and now - self._looked >= EVERY:
            self._looked = now
            self._end = self._found(now)
        return self._end

    def _found(self, now: float) -> End:
        if self._attempt.outcome.exists():
            return End.OUTCOME
        if not _removed(self._attempt.path):
            self._seen = now
        return End.VANISHED if now - self._seen > VANISHED else End.NOT_YET


def _removed(path: Path) -> bool:
    """Known not to be there: an EIO or ESTALE of a network file system does not say that."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
