"""Lightning (also as `pytorch_lightning`): heartbeats with the loss, final checkpoints, seals, snapshots.

    from transom_cli.integrations.lightning import TransomCallback, latest

    trainer = L.Trainer(..., callbacks=[TransomCallback("out"), ModelCheckpoint("out", every_n_train_steps=100)])
    trainer.fit(model, data, ckpt_path=latest("out"))

Every checkpoint that the Trainer saves is sealed: a `.ckpt` file, or the folder of a sharded strategy. Lightning's own
requeueing saves inside a signal handler, where the ranks do not agree on the step; this callback turns it off. It also
undoes Lightning's handler of SIGTERM, which calls a collective inside the handler, and may hang there.

With `TransomCallback("out", snapshot_every=10)`, what Lightning would save is kept in node memory as well, once per
rank, and training resumes from that if it is newer.
"""

import signal
import sys
from pathlib import Path
from typing import Any

from transom_cli.ckpt.rng import read_rng, write_rng
from transom_cli.integrations import experiment
from transom_cli.integrations.base import Rank, checkpoint_step, latest
from transom_cli.integrations.memory import Snapshots, keeps

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["TransomCallback", "latest"]


class TransomCallback(Callback):  # type: ignore[misc]
    """Report each step, save on request to `folder`, and seal each checkpoint.

    Args:
        folder: where a final checkpoint is written, as `final-step=<n>.ckpt`: the folder that `latest` gets.
        snapshot_every: keep a snapshot in memory after each of this many steps.
    """

    def __init__(self, folder: str | Path, *, snapshot_every: int | None = None) -> None:
        self._every = snapshot_every if keeps(snapshot_every) else None
        self._memory: Snapshots | None = None
        self._random: dict[str, Any] = {}  # restored from memory
        self._rank = Rank()
        self._on_term = signal.getsignal(signal.SIGTERM)
        self._folder = Path(folder)
        self._step = -1  # the newest that was reported

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if hasattr(environment := trainer._accelerator_connector.cluster_environment, "auto_requeue"):
            environment.auto_requeue = False
        for logger in trainer.loggers:
            if type(logger).__name__ == "TensorBoardLogger" and logger._version is None and experiment.name():
                logger._version = experiment.name()  # else each attempt gets a folder of its own
        save = trainer.save_checkpoint

        def save_and_seal(filepath: Any, *args: Any, **kwargs: Any) -> None:
            save(filepath, *args, **kwargs)
            self._rank.saved(filepath, trainer.global_step)

        trainer.save_checkpoint = save_and_seal
        if self._every is not None and self._memory is None:
            self._resume(trainer, self._every)

    def _resume(self, trainer: Any, every: int) -> None:
        """Restore the newest snapshot; Lightning then loads it in place of an older checkpoint."""
        state, connector = _State(trainer), trainer._checkpoint_connector
        start = connector.resume_start
        self._memory = memory = Snapshots({"lightning": state}, every)
        step = memory.resume()
        found = state.loaded if step >= 0 else None
        self._random = read_rng() if found is not None else {}

        def resume_start(checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
            on_disk = checkpoint_step(checkpoint_path) if checkpoint_path else -1
            if found is not None and on_disk is not None and step > on_disk:
                experiment.resume_after(step)
                connector._ckpt_path, connector._loaded_checkpoint = checkpoint_path, dict(found)
                return
            self._random = {}
            if memory.failure is not None and not checkpoint_path:
                raise memory.failure
            start(checkpoint_path, *args, **kwargs)

        connector.resume_start = resume_start

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        self._step = trainer.global_step
        self._rank.begin(self._step)
        if self._random:
            write_rng(self._random)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._step:  # a micro-batch of gradient accumulation
            return
        self._step = step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._rank.step(step, loss):  # here, where Lightning's ModelCheckpoint saves: its counters are right
            trainer.save_checkpoint(self._folder / f"final-step={step}.ckpt")
            trainer.should_stop = trainer.should_stop or self._rank.stop
        if self._memory is not None:
            self._memory.save(step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            if self._memory is not None:
                self._memory.end()
            self._rank.close()


class _State:
    """What Lightning saves, as one object of this rank. Before training begins, it is what was loaded."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        if not self._trainer.fit_loop.epoch_loop.global_step or not self._trainer.optimizers:
            return self.loaded
        self.loaded = {}
        saved = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return {name: value for name, value in saved.items() if "hyper_parameters" not in name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state
