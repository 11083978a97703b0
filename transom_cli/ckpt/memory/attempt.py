"""The attempt that an agent's holder belongs to: when it is over, the holder ends, whatever has become of the agent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.beats import places
from transom_cli.layout import AttemptDir

VANISHED = 3.0  # seconds that its folder must be missing: a network file system may lose it for a moment


class Attempt:
    """Holds the node's beats folder too, where the socket is: another attempt's agent would sweep it away, were all
    others gone who use it."""

    def __init__(self, path: Path, beats_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError when the beats folder is not ours."""
        self._attempt, self._beats_dir, self._clock = AttemptDir(path), beats_dir, clock
        self._held = places.enter(beats_dir)
        self._seen = clock()

    def over(self) -> bool:
        """Whether its outcome stands, or its folder has vanished for good."""
        now = self._clock()
        if self._attempt.outcome.exists():
            return True
        try:
            self._attempt.path.stat()
        except FileNotFoundError:
            return now - self._seen > VANISHED
        except OSError:
            pass  # an EIO or ESTALE does not say that it is gone
        self._seen = now
        return False

    def close(self) -> None:
        """The folder goes with whoever is the last to use it."""
        with contextlib.suppress(OSError):
            os.close(self._held)
        places.discard(self._beats_dir)
