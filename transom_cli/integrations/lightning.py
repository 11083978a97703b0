"""Lightning (also as `pytorch_lightning`): heartbeats with the loss, final checkpoints, seals.

    from transom_cli.integrations.lightning import TransomCallback, latest

    trainer = L.Trainer(..., callbacks=[TransomCallback("out"), ModelCheckpoint("out", every_n_train_steps=100)])
    trainer.fit(model, data, ckpt_path=latest("out"))

Every checkpoint that the Trainer saves is sealed: a `.ckpt` file, or the folder of a sharded strategy. Lightning's own
requeueing saves inside a signal handler, where the ranks do not agree on the step; this callback turns it off. It also
undoes Lightning's handler of SIGTERM, which calls a collective inside the handler, and may hang there.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from transom_cli.integrations import experiment
from transom_cli.integrations.base import Rank, latest

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["TransomCallback", "latest"]


class TransomCallback(Callback):  # type: ignore[misc]
    """Report each step, save on request to `folder`, and seal each checkpoint.

    Args:
        folder: where a final checkpoint is written, as `final-step=<n>.ckpt`: the folder that `latest` gets.
    """

    def __init__(self, folder: str | Path) -> None:
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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        self._step = trainer.global_step
        self._rank.begin(self._step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._step:  # a micro-batch of gradient accumulation
            return
        self._step = step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._rank.step(step, loss):  # here, where Lightning's ModelCheckpoint saves: its counters are right
            trainer.save_checkpoint(self._folder / f"final-step={step}.ckpt")
            trainer.should_stop = trainer.should_stop or self._rank.stop

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._rank.close()
