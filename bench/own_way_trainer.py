"""Tiny trainings for bench/frameworks_own_way.py: in their framework's own way, or with transom's callback.

Each rank prints `saw STEP BATCH` for each step: the number of the step, and a checksum of its batch. The bench imports
this module and forks: a start then costs no imports.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

STEPS, EVERY, DELAY = 60, 10, 0.1
FEATURES = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))


def saw(step: int, batch: torch.Tensor) -> None:
    time.sleep(DELAY)
    print(f"saw {step} {crc32(batch.numpy().tobytes()):08x}", flush=True)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.layers(features), features.sum(1, keepdim=True))}


def huggingface(way: str, out: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Seeing(Trainer):
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            saw(self.state.global_step + 1, inputs["features"])
            return super().training_step(model, inputs, *more)

    own = way == "own"
    callbacks: list[Any] = []
    if not own:
        from transom_cli.integrations.huggingface import TransomCallback

        callbacks = [TransomCallback()]
    how = TrainingArguments(
        str(out), max_steps=STEPS, save_steps=EVERY, save_total_limit=3, per_device_train_batch_size=4, use_cpu=True,
        ddp_backend="gloo", report_to=[], disable_tqdm=True, enable_jit_checkpoint=own,
    )  # fmt: skip
    data = [{"features": row} for row in FEATURES]
    trainer = Seeing(Net(), how, train_dataset=data, callbacks=callbacks)
    found: Any = any(out.glob("checkpoint-*"))
    if not own:
        from transom_cli.integrations.huggingface import latest

        found = latest(trainer)
    trainer.train(resume_from_checkpoint=found)


def lightning(way: str, out: Path) -> None:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Any:
            saw(self.trainer.global_step + 1, batch[0])
            return self.net(batch[0])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    L.seed_everything(0)
    callbacks: list[Any] = [ModelCheckpoint(str(out), filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)]
    files = sorted(out.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    newest = str(files[-1]) if files else None
    if way == "transom":
        from transom_cli.integrations.lightning import TransomCallback, latest

        callbacks.append(TransomCallback(str(out)))
        newest = latest(str(out))
    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", devices=1, num_nodes=2, max_steps=STEPS, logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(out),
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(FEATURES), batch_size=4, shuffle=True)
    trainer.fit(Module(), loader, ckpt_path=newest)


def torchtitan(way: str, out: Path) -> None:
    """Its checkpoint manager and data-loader, since its trainer assumes a GPU."""
    import torch.distributed as dist
    from torchtitan.components.checkpointer import CheckpointManager

    manager: Any = CheckpointManager
    if way == "transom":
        from transom_cli.integrations.torchtitan import TransomCheckpointManager

        manager = TransomCheckpointManager

    class State:
        step = 0

        def state_dict(self) -> dict[str, Any]:
            return {"step": torch.tensor(self.step)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.step = int(state["step"])

    class Optimizers(State):
        """Of plain SGD, which has no state."""

    dist.init_process_group("gloo")
    net, state = torch.nn.Linear(16, 1), State()
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    config = manager.Config(enable=True, interval=EVERY, keep_latest_k=0, last_save_model_only=False)
    checkpoints = config.build(
        dataloader=State(), model_parts=[net], optimizers=Optimizers(), lr_schedulers=State(),
        states={"train_state": state}, sd_adapter=None, base_folder=str(out),
    )  # fmt: skip
    checkpoints.load()
    while state.step < STEPS:
        first = (8 * state.step + 4 * dist.get_rank()) % len(FEATURES)
        batch = FEATURES[first : first + 4]
        saw(state.step + 1, batch)
        torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        checkpoints.maybe_wait_for_staging()
        checkpoints.save(state.step, last_step=state.step == STEPS)
        if way == "transom" and checkpoints._rank.stop:
            break
    checkpoints.maybe_wait_for_saving()
    checkpoints.close()
    dist.destroy_process_group()


def train(framework: str, way: str, out: Path) -> None:
    torch.manual_seed(0)
    {"huggingface": huggingface, "lightning": lightning, "torchtitan": torchtitan}[framework](way, out)
