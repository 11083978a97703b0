"""Records which samples the steps of a launch use, for `transom explain --samples`: one line, and one per change."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transom_cli.files import make_private, open_private
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir


class SampleLog:
    """Does nothing on other ranks, outside a run, and without a data position in the state."""

    def __init__(self, state: Mapping[str, Any], *, first: bool) -> None:
        attempt = os.environ.get(paths.ATTEMPT_DIR)
        positions = (one.sample_progress for one in state.values() if callable(getattr(one, "sample_progress", None)))
        self._progress = next(positions, None) if first and attempt else None
        self._path = AttemptDir(Path(attempt)).samples(paths.own_launch()) if attempt else Path()
        self._known = (-1, -1, 0)  # step, position and global batch of the newest line

    def done(self, step: int) -> None:
        """A step is done. Takes a microsecond if it used the next global batch. Training continues if this fails."""
        if self._progress is None:
            return
        now = self._progress()
        last, position, batch = self._known
        if batch == now["global_batch"] and now["position"] == position + (step - last) * batch:
            return
        self._known = step, now["position"], now["global_batch"]
        try:
            make_private(self._path.parent)
            with open_private(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **now}) + "\n")
        except OSError:
            self._progress = None  # the proof then says which steps have no record
