"""Hugging Face Trainer, and what is built on it (TRL, LLaMA-Factory): heartbeats, final checkpoints, seals.

    from transom_cli.integrations.huggingface import TransomCallback, latest

    trainer = Trainer(..., callbacks=[TransomCallback()])
    trainer.train(resume_from_checkpoint=latest(trainer.args.output_dir))

`transformers.trainer_utils.get_last_checkpoint` takes the highest number, also of a folder that is half-written.
`latest` takes the newest checkpoint that is sealed and whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from transom_cli.integrations.base import Rank, latest

__all__ = ["TransomCallback", "last_checkpoint", "latest"]
last_checkpoint = latest  # its name before there were seals


class TransomCallback(TrainerCallback):
    """Report each step, save on request, and seal each checkpoint."""

    def __init__(self) -> None:
        self._rank = Rank()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rank.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._rank.step(state.global_step):
            control.should_save = True
            control.should_training_stop = control.should_training_stop or self._rank.stop

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._rank.report(state.global_step, logs["loss"], logs.get("grad_norm"))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rank.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rank.close()
