"""Snapshots of a framework's training in node memory, beside the framework's own checkpoints.

A Checkpointer keeps them, with what it guarantees: they outlive the ranks, can be protected on other nodes, and are
compared with what was saved before training continues. Its checkpoints on disk are few: one after each restore from
memory. Final checkpoints are the framework's own.
"""

import os
import sys
from typing import Any

from transom_cli.ckpt import saved_marker
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import NoCheckpointRestores, RestoredStateDiffers, WorldSizeChanged
from transom_cli.ckpt.schedule import NEVER
from transom_cli.errors import TransomError, UsageError
from transom_cli.heartbeat import paths


class Snapshots(Checkpointer):
    """A Checkpointer whose owner falls back to a checkpoint of another kind.

    failure: why a restore failed, in which case the live state may be overwritten in part: load all of it.
    """

    def __init__(self, state: dict[str, Any], every: int, **options: Any) -> None:
        super().__init__(state, every=every, **{"persist": NEVER, **options})
        self.failure: TransomError | None = None
        if self._requests is not None:  # the integration saves on request
            self._requests.close()
            self._requests = None

    def resume(self) -> int:
        """Restore the newest snapshot. Return its step; -1: none was restored."""
        if self._ranks.by_first(self._restorer.newest) < 0:
            self._ranks.by_first(lambda: saved_marker.forget(self.directory))  # the framework's checkpoint is used
            return -1
        try:
            step = self.restore(allow_lost=True)
        except (NoCheckpointRestores, RestoredStateDiffers, WorldSizeChanged) as error:
            self.failure = error
            self._say(f"the framework's own checkpoint is used: {error.what}")
            return -1
        return -1 if step is None else step

    def end(self) -> None:
        """Training has ended: the memory is not needed any more, and nothing is written."""
        if not self._closed:
            self._closed = True
            self.wait()
            self._saver.close()
            self._snapshots.close(durable=True)


def keeps(every: int | None) -> bool:
    """Whether snapshots are wanted, and there is a place for them: not outside transom. Raises UsageError."""
    if every is not None and (type(every) is not int or every < 1):
        raise UsageError(f"snapshot_every={every!r} must be a number of steps, at least 1, or None")
    if every is not None and not os.environ.get(paths.CHECKPOINT_DIR):
        print("transom: no snapshots in memory: this trainer was not started by transom", file=sys.stderr, flush=True)
        return False
    return every is not None
