"""transom's Checkpointer in bench/ckpt.py, through its public interface only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from ckpt_methods import Method, Place
from ckpt_state import State
from harness import BenchError

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.names import MANIFEST, MEMORY


class Ours(Method):
    """save() waits for the copy in memory, which survives the trainer; the rest happens in the background."""

    memory: ClassVar[bool] = True

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        self._step = 0
        self._checkpointer = self.make(dict(state.tensors))
        if not self.steps():
            self._checkpointer.restore()  # as trainers begin: of nothing, but save() is made ready for

    def make(self, state: dict[str, Any]) -> Checkpointer:
        return Checkpointer(state, self.place.folder, every=1, keep=2)

    def save(self, step: int) -> None:
        self._step = step
        if not self._checkpointer.save(step):
            raise BenchError(f"save({step}) saved nothing")

    def done(self) -> bool:
        return self._checkpointer.last_error is not None or (self.path(self._step) / MANIFEST).exists()

    def finish(self) -> None:
        """Not wait(), which waits for the removal of old ones too: others' are removed untimed."""
        while self._checkpointer.durable != self._step:
            if self._checkpointer.last_error is not None:
                raise self._checkpointer.last_error
            time.sleep(0.001)

    def steps(self) -> list[int]:
        return [candidate.step for candidate in candidates(self.place.folder)]

    def load(self, step: int) -> None:
        found = self._checkpointer.restore()
        if found != step:
            raise BenchError(f"restore() took step {found}, not {step}")

    def load_memory(self) -> int | None:
        """With no checkpoint on disk to be seen meanwhile: what restore() finds, it finds in memory."""
        with self._unseen() if self.place.rank == 0 else contextlib.nullcontext():
            return self._checkpointer.restore()

    def forget(self) -> None:
        """Without the file by which it is known, what is in memory belongs to no directory: see `meeting_place`."""
        self._checkpointer.close()
        if self.place.rank == 0:
            (self.place.folder / MEMORY).unlink()
        self._checkpointer = self.make(dict(self.state.tensors))

    def prune(self, step: int) -> None:
        """It keeps the newest two by itself."""

    def close(self) -> None:
        self._checkpointer.close()

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        """Rank 0 alone looks for checkpoints, for all."""
        aside = self.place.folder / "aside"
        aside.mkdir()
        moved = [self.path(step).rename(aside / self.path(step).name) for step in self.steps()]
        try:
            yield
        finally:
            for path in moved:
                path.rename(self.place.folder / path.name)
            aside.rmdir()
