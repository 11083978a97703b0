"""The attempt that an agent's holder belongs to: when it is over, the holder ends, whatever has become of the agent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.heartbeat import paths
from transom_cli.heartbeat.attempt_end import AttemptEnd, End
from transom_cli.layout import AttemptDir


class Attempt:
    """Holds the node's beats folder too, where the socket is: another attempt's agent would sweep it away, were all
    others gone who use it."""

    def __init__(self, path: Path, beats_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError when the beats folder is not ours."""
        self._beats_dir, self._clock = beats_dir, clock
        self._held = paths.enter(beats_dir)
        self._end = AttemptEnd(AttemptDir(path), clock())

    def over(self) -> bool:
        """Whether its outcome stands, or its folder has vanished for good."""
        return self._end.look(self._clock()) is not End.NOT_YET

    def close(self) -> None:
        """The folder goes with whoever is the last to use it."""
        with contextlib.suppress(OSError):
            os.close(self._held)
        paths.discard(self._beats_dir)
