"""Hugging Face Trainer: heartbeats, a checkpoint before the time limit, and a resume from complete checkpoints only.

    from transom_cli.integrations.huggingface import TransomCallback, last_checkpoint

    trainer = Trainer(..., callbacks=[TransomCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args.output_dir))

Slurm's warning before the time limit reaches each rank as SIGUSR2, not necessarily during the same step. The ranks
agree with one small all-reduce per step, save at the same step and stop; the run then continues in its next attempt. A
Trainer checkpoint that was interrupted looks like a complete one to `transformers.trainer_utils.get_last_checkpoint`,
so the callback marks complete ones, and `last_checkpoint` ignores all others.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from transom_cli.files import publish_bytes
from transom_cli.heartbeat.client import beat

COMPLETE = "transom-complete"  # a file in each complete checkpoint
_FOLDER = re.compile(r"checkpoint-(\d+)")


class TransomCallback(TrainerCallback):
    """Report each step to transom; save and stop when Slurm warns of the time limit."""

    def __init__(self) -> None:
        self._warned = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if signal.getsignal(signal.SIGUSR2) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGUSR2, self._warn)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        beat(state.global_step)
        if self._agreed(args.device):
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            beat(state.global_step, loss=logs["loss"], grad_norm=logs.get("grad_norm"))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint as complete once all ranks have written their part."""
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        if state.is_world_process_zero:
            publish_bytes(Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE, b"")

    def _warn(self, *_: object) -> None:
        self._warned = True

    def _agreed(self, device: Any) -> bool:
        """Whether any rank was warned; the same on all ranks."""
        if not (dist.is_available() and dist.is_initialized()):
            return self._warned
        flag = torch.tensor([int(self._warned)], device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def last_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a Trainer's output directory, or None for a fresh start.

    Args:
        output_dir: `TrainingArguments.output_dir`.
    """
    found = [
        (int(match.group(1)), path)
        for path in Path(output_dir).glob("checkpoint-*")
        if (match := _FOLDER.fullmatch(path.name)) and (path / COMPLETE).is_file()
    ]
    return str(max(found)[1]) if found else None
