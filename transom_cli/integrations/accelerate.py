"""accelerate: heartbeats with the loss, final checkpoints, seals, snapshots.

    from transom_cli.integrations.accelerate import attach, latest

    run = attach(accelerator)                         # after accelerator.prepare(...)
    if path := latest("out"):
        accelerator.load_state(path)                  # also restores run.step
    ...
    if run.step % 100 == 0 or run.due:                # due: a final checkpoint is requested, on all ranks
        accelerator.save_state(f"out/checkpoint_{run.step}")

`save_state` seals what it has written. Steps are those of the first optimizer, not micro-batches.

With `attach(accelerator, snapshot_every=10)` and `run.snapshot()` at the end of each step, a snapshot of what
accelerate saves is kept in node memory as well. Training resumes from that if it is newer: `load_state` then does
nothing.
"""

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from transom_cli.integrations.base import Attached, latest
from transom_cli.integrations.memory import keeps

__all__ = ["attach", "latest"]


def attach(accelerator: Any, *, snapshot_every: int | None = None) -> Attached:
    """Report the steps of a prepared accelerator, and seal what its `save_state` writes.

    Args:
        snapshot_every: keep a snapshot in memory after each of this many steps. Objects that are registered for
            checkpointing later are not in it.
    """
    run = Attached()
    accelerator.register_for_checkpointing(run)
    backward, save, load = accelerator.backward, accelerator.save_state, accelerator.load_state
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

    def load_if_newer(input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        return None if input_dir is not None and run.is_newer(input_dir) else load(input_dir, *args, **kwargs)

    accelerator.backward, accelerator.save_state, accelerator.load_state = (
        backward_and_note,
        save_and_seal,
        load_if_newer,
    )
    if keeps(snapshot_every):
        run.remember(_state(accelerator), snapshot_every or 1)
    register_optimizer_step_post_hook(stepped)
    return run


def _state(accelerator: Any) -> dict[str, Any]:
    """What `save_state` saves. The Checkpointer adds the random numbers."""
    parts: dict[str, list[Any]] = {
        "model": accelerator._models,
        "optimizer": [one.optimizer for one in accelerator._optimizers],
        "scheduler": [one.scheduler for one in accelerator._schedulers],
        "scaler": [accelerator.scaler] if getattr(accelerator, "scaler", None) is not None else [],
        "data": [one for one in accelerator._dataloaders if getattr(one, "use_stateful_dataloader", False)],
        "custom": accelerator._custom_objects,
    }
    return {f"{name}{n}": one for name, found in parts.items() for n, one in enumerate(found)}
