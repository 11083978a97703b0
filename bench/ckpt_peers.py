"""torchsnapshot in bench/ckpt.py."""

from __future__ import annotations

from typing import Any

from ckpt_methods import Method, Place, sync_tree
from ckpt_state import State
from torchsnapshot import Snapshot, StateDict
from torchsnapshot.snapshot import PendingSnapshot

from transom_cli.ckpt.names import parse_step

_METADATA = ".snapshot_metadata"  # written last


class TorchSnapshot(Method):
    """Of plain tensors, as it takes no DTensor of today's torch. It does not fsync: the bench does, after it."""

    synced = False

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        self._pending: PendingSnapshot | None = None

    def save(self, step: int) -> None:
        shared = None if self.place.case.sharded else ["**"]
        self._pending = Snapshot.async_take(str(self.path(step)), self._app(), replicated=shared)

    def done(self) -> bool:
        return self._pending is None or self._pending.done()

    def finish(self) -> None:
        if self._pending is not None:
            path = self._pending.path
            self._pending.wait()
            if self.place.rank == 0:
                sync_tree(self.place.folder / path)

    def steps(self) -> list[int]:
        named = [path.parent.name for path in self.place.folder.glob(f"step-*/{_METADATA}")]
        return sorted((step for name in named if (step := parse_step(name)) is not None), reverse=True)

    def load(self, step: int) -> None:
        Snapshot(str(self.path(step))).restore(self._app())

    def _app(self) -> dict[str, Any]:
        return {"state": StateDict(**self.state.local)}
