"""A tiny training for bench/frameworks_own_way.py: in its framework's own way, or with transom's callback.

Each rank prints `saw STEP BATCH` for each step: the number of the step, and a checksum of its batch.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=("huggingface", "lightning"))
parser.add_argument("way", choices=("own", "transom"))
parser.add_argument("out")
args = parser.parse_args()
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


def huggingface() -> None:
    from transformers import Trainer, TrainingArguments

    class Seeing(Trainer):
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            saw(self.state.global_step + 1, inputs["features"])
            return super().training_step(model, inputs, *more)

    own = args.way == "own"
    callbacks: list[Any] = []
    if not own:
        from transom_cli.integrations.huggingface import TransomCallback

        callbacks = [TransomCallback()]
    how = TrainingArguments(
        args.out, max_steps=STEPS, save_steps=EVERY, save_total_limit=3, per_device_train_batch_size=4, use_cpu=True,
        ddp_backend="gloo", report_to=[], disable_tqdm=True, enable_jit_checkpoint=own,
    )  # fmt: skip
    data = [{"features": row} for row in FEATURES]
    trainer = Seeing(Net(), how, train_dataset=data, callbacks=callbacks)
    found: Any = any(Path(args.out).glob("checkpoint-*"))
    if not own:
        from transom_cli.integrations.huggingface import latest

        found = latest(trainer)
    trainer.train(resume_from_checkpoint=found)


def lightning() -> None:
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
    callbacks: list[Any] = [ModelCheckpoint(args.out, filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)]
    files = sorted(Path(args.out).glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    newest = str(files[-1]) if files else None
    if args.way == "transom":
        from transom_cli.integrations.lightning import TransomCallback, latest

        callbacks.append(TransomCallback(args.out))
        newest = latest(args.out)
    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", devices=1, num_nodes=2, max_steps=STEPS, logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=args.out,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(FEATURES), batch_size=4, shuffle=True)
    trainer.fit(Module(), loader, ckpt_path=newest)


torch.set_num_threads(1)
torch.manual_seed(0)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
{"huggingface": huggingface, "lightning": lightning}[args.framework]()
