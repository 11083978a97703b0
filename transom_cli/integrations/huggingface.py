"""Hugging Face Trainer, and what is built on it (TRL, LLaMA-Factory): heartbeats, final checkpoints, seals, snapshots.

    from transom_cli.integrations.huggingface import TransomCallback, latest

    trainer = Trainer(..., callbacks=[TransomCallback()])
    trainer.train(resume_from_checkpoint=latest(trainer))

`transformers.trainer_utils.get_last_checkpoint` takes the highest number, also of a folder that is half-written.
`latest` takes the newest checkpoint that is sealed and whole. With `TransomCallback(snapshot_every=10)`, a snapshot of
the training is kept in node memory as well, and training resumes from that if it is newer.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import TrainerState

from transom_cli.ckpt.rng import read_rng, write_rng
from transom_cli.errors import UsageError
from transom_cli.integrations import experiment
from transom_cli.integrations.base import Rank
from transom_cli.integrations.base import latest as latest_sealed
from transom_cli.integrations.memory import Snapshots, keeps

__all__ = ["TransomCallback", "latest"]
_MEMORY = "a snapshot in memory"  # in place of a checkpoint's folder
_NOT_SAVED = (
    "max_steps",
    "num_train_epochs",
    "is_local_process_zero",
    "is_world_process_zero",
    "is_hyper_param_search",
)


class TransomCallback(TrainerCallback):
    """Report each step, save on request, and seal each checkpoint.

    Args:
        snapshot_every: keep a snapshot in memory after each of this many steps. It needs `latest(trainer)`.
    """

    def __init__(self, *, snapshot_every: int | None = None) -> None:
        self._rank = Rank()
        self._every = snapshot_every if keeps(snapshot_every) else None
        self.memory: Snapshots | None = None
        self._attached = False

    def attach(self, trainer: Trainer) -> None:
        """Keep snapshots of this trainer, and let it resume from the newest one."""
        if self._every is None or self._attached:
            return
        self._attached = True
        _Resume(trainer, self).wrap(self._every)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._every is not None and not self._attached:
            raise UsageError(
                "snapshot_every needs the trainer", "", "trainer.train(resume_from_checkpoint=latest(trainer))"
            )
        self._rank.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._rank.step(state.global_step):
            control.should_save = True
            control.should_training_stop = control.should_training_stop or self._rank.stop
        if self.memory is not None:
            self.memory.save(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._rank.report(state.global_step, logs["loss"], logs.get("grad_norm"))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rank.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.forget()
        self._rank.close()

    def forget(self) -> None:
        """Keep no more snapshots."""
        if self.memory is not None:
            self.memory.end()
            self.memory = None


def latest(where: Trainer | str | Path) -> str | None:
    """Return the newest sealed checkpoint of a trainer, or in a folder, that verifies. See `integrations.base.latest`.

    A trainer also resumes from a newer snapshot in memory, if its TransomCallback keeps some.
    """
    if not isinstance(where, Trainer):
        return latest_sealed(where)
    for callback in where.callback_handler.callbacks:
        if isinstance(callback, TransomCallback):
            callback.attach(where)
    return latest_sealed(str(where.args.output_dir))


class _Counters:
    """The Trainer's own state: step, epoch, what it has logged, and that of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        saved = {name: value for name, value in vars(self._trainer.state).items() if name not in _NOT_SAVED}
        return {"state": json.dumps(saved, sort_keys=True, default=str)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        names = {field.name for field in dataclasses.fields(TrainerState)}
        for name, value in json.loads(state["state"]).items():
            if name in names:
                setattr(self._trainer.state, name, value)


class _Resume:
    """Resumes a Trainer from memory where it would load its own checkpoint: model, optimizer, position in the data."""

    def __init__(self, trainer: Any, callback: TransomCallback) -> None:
        needed = ("_prepare_for_training", "_run_epoch", "_load_rng_state", "_load_optimizer_and_scheduler")
        if missing := [name for name in needed if not hasattr(trainer, name)]:
            raise UsageError(f"snapshot_every does not work with this version of transformers: no {missing[0]}")
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise UsageError("snapshot_every works neither with DeepSpeed nor with FSDP under Hugging Face's Trainer")
        self._trainer, self._callback = trainer, callback
        self._first = True  # a script may train more than once
        self._step = -1  # from which training resumes in memory
        self._random: dict[str, Any] = {}

    def wrap(self, every: int) -> None:
        trainer = self._trainer
        prepare, run_epoch, load_random = trainer._prepare_for_training, trainer._run_epoch, trainer._load_rng_state

        def prepare_and_restore(max_steps: int, loader: Any, checkpoint: str | None) -> Any:
            if not self._first:
                self._step = -1
                self._callback.forget()
                return prepare(max_steps, loader, checkpoint)
            self._first = False
            prepared = prepare(max_steps, loader, None)
            self._callback.memory = memory = Snapshots(self._state(), every)
            self._restore(memory, checkpoint)
            return prepared

        def run_epoch_from_there(*args: Any, **of: Any) -> Any:
            if self._step >= 0:
                epochs, steps = divmod(self._step, of["num_update_steps_per_epoch"])
                if of["epoch"] < epochs:
                    return None
                of["epochs_trained"], of["resume_from_checkpoint"] = epochs, _MEMORY
                of["steps_trained_in_current_epoch"] = steps * trainer.args.gradient_accumulation_steps
            return run_epoch(*args, **of)

        def load_random_numbers(checkpoint: str | None) -> None:
            if checkpoint == _MEMORY:
                write_rng(self._random)
            else:
                load_random(checkpoint)

        trainer._prepare_for_training, trainer._run_epoch = prepare_and_restore, run_epoch_from_there
        trainer._load_rng_state = load_random_numbers

    def _state(self) -> dict[str, Any]:
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        state = {"model": trainer.model, "optimizer": optimizer, "scheduler": trainer.lr_scheduler}
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            state["scaler"] = scaler
        return {**state, "trainer": _Counters(trainer)}

    def _restore(self, memory: Snapshots, checkpoint: str | None) -> None:
        trainer, on_disk = self._trainer, self._trainer.state.global_step if checkpoint else -1
        of_checkpoint = vars(trainer.state).copy()
        step = memory.resume()
        if step > on_disk:
            self._step, self._random = step, read_rng()
            experiment.resume_after(step)
            trainer._load_callback_state()
            return
        if checkpoint is None:
            if memory.failure is not None:
                raise memory.failure
            return
        vars(trainer.state).update(of_checkpoint)
        if step >= 0 or memory.failure is not None:
            trainer._load_from_checkpoint(checkpoint)
        trainer._load_optimizer_and_scheduler(checkpoint)
        trainer._load_scaler(checkpoint)
