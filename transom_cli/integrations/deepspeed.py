"""DeepSpeed: heartbeats with the loss, final checkpoints, seals.

    from transom_cli.integrations.deepspeed import attach, latest

    run = attach(engine)                              # after deepspeed.initialize(...)
    if path := latest("out"):
        engine.load_checkpoint("out", tag=Path(path).name)
    ...
    if engine.global_steps % 100 == 0 or run.due:     # due: a final checkpoint is requested, on all ranks
        engine.save_checkpoint("out")

`save_checkpoint` seals the tag that it has written. If `latest` passes over a damaged tag, it corrects DeepSpeed's own
file `latest` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transom_cli.integrations.base import Attached, latest

__all__ = ["attach", "latest"]


def attach(engine: Any) -> Attached:
    """Report the steps of an engine, and seal what its `save_checkpoint` writes."""
    run = Attached()
    backward, step, save = engine.backward, engine.step, engine.save_checkpoint
    newest: list[Any] = [None]

    def backward_and_note(loss: Any, *args: Any, **kwargs: Any) -> Any:
        newest[0] = loss.detach()
        return backward(loss, *args, **kwargs)

    def step_and_report(*args: Any, **kwargs: Any) -> None:
        before = engine.global_steps
        run.begin(before)
        step(*args, **kwargs)
        if engine.global_steps != before:  # not a micro-batch of gradient accumulation
            run.stepped(engine.global_steps, newest[0])

    def save_and_seal(save_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        tag = f"global_step{engine.global_steps}" if tag is None else tag
        done = save(save_dir, tag, *args, **kwargs)
        run.rank.saved(Path(save_dir) / str(tag), engine.global_steps)
        return done

    engine.backward, engine.step, engine.save_checkpoint = backward_and_note, step_and_report, save_and_seal
    return run
