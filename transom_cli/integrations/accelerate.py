"""accelerate: heartbeats with the loss, final checkpoints, seals.

    from transom_cli.integrations.accelerate import attach, latest

    run = attach(accelerator)                         # after accelerator.prepare(...)
    if path := latest("out"):
        accelerator.load_state(path)                  # also restores run.step
    ...
    if run.step % 100 == 0 or run.due:                # due: a final checkpoint is requested, on all ranks
        accelerator.save_state(f"out/checkpoint_{run.step}")

`save_state` seals what it has written. Steps are those of the first optimizer, not micro-batches.
"""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from transom_cli.integrations.base import Attached, latest

__all__ = ["attach", "latest"]


def attach(accelerator: Any) -> Attached:
    """Report the steps of a prepared accelerator, and seal what its `save_state` writes."""
    run = Attached()
    accelerator.register_for_checkpointing(run)
    backward, save = accelerator.backward, accelerator.save_state
    newest: list[Any] = [None]
    first = accelerator._optimizers[0].optimizer if accelerator._optimizers else None

    def backward_and_note(loss: Any, *args: Any, **kwargs: Any) -> None:
        newest[0] = loss.detach() if hasattr(loss, "detach") else loss
        backward(loss, *args, **kwargs)

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if first is None or optimizer is first:
            run.stepped(run.step + 1, newest[0])

    def save_and_seal(*args: Any, **kwargs: Any) -> Any:
        folder = save(*args, **kwargs)
        run.rank.saved(folder, run.step)
        return folder

    accelerator.backward, accelerator.save_state = backward_and_note, save_and_seal
    register_optimizer_step_post_hook(stepped)
    return run
