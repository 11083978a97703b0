"""DeepSpeed: heartbeats with the loss, final checkpoints, seals, snapshots.

    from transom_cli.integrations.deepspeed import attach, latest

    run = attach(engine)                              # after deepspeed.initialize(...)
    if path := latest("out"):
        engine.load_checkpoint("out", tag=Path(path).name)
    ...
    if engine.global_steps % 100 == 0 or run.due:     # due: a final checkpoint is requested, on all ranks
        engine.save_checkpoint("out")

`save_checkpoint` seals the tag that it has written. If `latest` passes over a damaged tag, it corrects DeepSpeed's own
file `latest` too. With `attach(engine, snapshot_every=10)`, a snapshot of the training is kept in node memory as well
(up to ZeRO stage 2). Training resumes from that if it is newer: `load_checkpoint` then does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transom_cli.errors import UsageError
from transom_cli.integrations.base import Attached, latest
from transom_cli.integrations.memory import keeps

__all__ = ["attach", "latest"]


def attach(engine: Any, *, snapshot_every: int | None = None) -> Attached:
    """Report the steps of an engine, and seal what its `save_checkpoint` writes.

    Args:
        snapshot_every: keep a snapshot in memory after each of this many steps.
    """
    run = Attached()
    load = engine.load_checkpoint
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
            run.snapshot()

    def save_and_seal(save_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        tag = f"global_step{engine.global_steps}" if tag is None else tag
        done = save(save_dir, tag, *args, **kwargs)
        run.rank.saved(Path(save_dir) / str(tag), engine.global_steps)
        return done

    def load_if_newer(load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        if tag is not None and run.is_newer(Path(load_dir) / str(tag)):
            return None, {}
        return load(load_dir, tag, *args, **kwargs)

    engine.backward, engine.step, engine.save_checkpoint = backward_and_note, step_and_report, save_and_seal
    engine.load_checkpoint = load_if_newer
    if keeps(snapshot_every):
        counters = _Counters(engine)
        run.remember(
            {"module": engine.module, **_optimizer(engine), "engine": counters, "run": run}, snapshot_every or 1
        )
    return run


def _optimizer(engine: Any) -> dict[str, Any]:
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage in (1, 2) and hasattr(optimizer, "single_partition_of_fp32_groups"):
        return {"optimizer": _Partition(optimizer)}
    if stage == 0 and hasattr(optimizer, "param_groups") and not hasattr(optimizer, "loss_scaler"):
        return {"optimizer": optimizer}
    raise UsageError(f"snapshot_every does not work with ZeRO stage {stage} and {type(optimizer).__name__}")


class _Partition:
    """What one rank has of the optimizer under ZeRO stages 1 and 2."""

    def __init__(self, optimizer: Any) -> None:
        self._zero = optimizer

    def state_dict(self) -> dict[str, Any]:
        scaler = {
            name: value for name, value in vars(self._zero.loss_scaler).items() if isinstance(value, (int, float))
        }
        return {
            "base": self._zero.optimizer.state_dict(),
            "parameters": list(self._zero.single_partition_of_fp32_groups),
            "loss_scaler": scaler,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._zero.optimizer.load_state_dict(state["base"])
        for live, saved in zip(self._zero.single_partition_of_fp32_groups, state["parameters"], strict=True):
            live.data.copy_(saved)
        vars(self._zero.loss_scaler).update(state["loss_scaler"])


class _Counters:
    """The engine's own counters, and its schedule of the learning rate."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        names = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
        schedule = self._engine.lr_scheduler
        return {
            "counters": {name: getattr(self._engine, name) for name in names},
            "schedule": schedule.state_dict() if hasattr(schedule, "state_dict") else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["counters"].items():
            setattr(self._engine, name, value)
        if state["schedule"]:
            self._engine.lr_scheduler.load_state_dict(state["schedule"])
