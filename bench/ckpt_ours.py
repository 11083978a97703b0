"""transom's own Checkpointer in bench/ckpt.py, through its public calls alone."""

from __future__ import annotations

from typing import Any, ClassVar

from ckpt_methods import Method, Place
from ckpt_state import State
from harness import BenchError
from torch.optim import SGD

from transom_cli.ckpt import Checkpointer
from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.names import MANIFEST


class Ours(Method):
    """save() waits for the copy in memory; the rest goes on behind it."""

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
        self._checkpointer.wait(strict=True)

    def steps(self) -> list[int]:
        return [candidate.step for candidate in candidates(self.place.folder)]

    def load(self, step: int) -> None:
        found = self._checkpointer.restore()
        if found != step:
            raise BenchError(f"restore() took step {found}, not {step}")

    def prune(self, step: int) -> None:
        """It keeps the newest two by itself."""

    def close(self) -> None:
        self._checkpointer.close()


class Overlapped(Ours):
    """save() returns at once; the next step of the optimizer waits for what is left of the copy."""

    overlapped: ClassVar[bool] = True

    def make(self, state: dict[str, Any]) -> Checkpointer:
        self._optimizer = SGD([{"params": list(state.values())}], lr=0.0)  # what it steps may be copied later
        return Checkpointer(
            {**state, "optimizer": self._optimizer}, self.place.folder, every=1, keep=2, copy="overlapped"
        )

    def step(self) -> None:
        self._optimizer.step()
