"""torchtitan: heartbeats, final checkpoints, seals, in torchtitan's own checkpoint format.

    from transom_cli.integrations.torchtitan import TransomCheckpointManager

    config.checkpoint = TransomCheckpointManager.Config(enable=True, interval=100)

It is torchtitan's checkpoint manager, with its options. Each checkpoint is sealed once it is written, also in the
asynchronous modes. Training resumes from the newest one that is sealed and whole; torchtitan's own rule takes the
highest step whose metadata exists. The loss is read from torchtitan's log.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtitan.components.checkpointer import CheckpointManager

from transom_cli.ckpt.names import step_of
from transom_cli.integrations.base import Rank, latest

__all__ = ["TransomCheckpointManager", "latest"]


class TransomCheckpointManager(CheckpointManager):  # type: ignore[misc]
    """Report each step, save on request, and seal each checkpoint."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """torchtitan's options."""

    def __init__(self, config: Any, **parts: Any) -> None:
        super().__init__(config, **parts)
        self._resumed, self._unsealed = 0, -1
        if self.enable:
            self._rank = Rank()

    def _find_load_step(self, folder: str = "") -> int:
        path = latest(folder or self.folder)
        self._resumed = (step_of(Path(path).name) or 0) if path else 0
        return self._resumed if path else -1

    def _load(self, step: int = -1) -> bool:
        self._resumed = max(step, 0)
        loaded = bool(super()._load(step))
        self._rank.begin(self._resumed)
        return loaded

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return bool(super()._should_save(curr_step, last_step)) or (self._rank.due and not self.load_only)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """torchtitan calls this after each step."""
        due = self._rank.step(curr_step)
        saved = bool(super()._save(curr_step, last_step))
        if saved:
            self._unsealed = curr_step
            if self.save_future is None:
                self._seal()
            elif due:
                self.maybe_wait_for_saving()
        return saved

    def _wait_for_saving(self) -> None:
        super()._wait_for_saving()
        self._seal()

    def _seal(self) -> None:
        step, self._unsealed = self._unsealed, -1
        if step >= 0:
            self._rank.saved(self._create_checkpoint_id(step), step)

    def _close(self) -> None:
        super()._close()
        self._rank.close()
