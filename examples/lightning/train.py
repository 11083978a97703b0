"""A tiny network under Lightning, made and trained without downloads. The lines for transom are marked.

transom run -N 2 -- python train.py out
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from transom_cli.integrations.lightning import TransomCallback, latest  # transom

parser = argparse.ArgumentParser()
parser.add_argument("out", help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--snapshot-every", type=int, help="steps between two snapshots in memory")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds; a real step takes longer than this one")
parser.add_argument("--final", type=Path, help="file for a hash of the final parameters")
args = parser.parse_args()


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, index):
        time.sleep(args.step_delay)
        features, target = batch
        return torch.nn.functional.mse_loss(self.layers(features), target)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.set_num_threads(1)
L.seed_everything(0)
made = torch.Generator().manual_seed(1)
features = torch.randn(256, 16, generator=made)
data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
model = Net()
trainer = L.Trainer(
    accelerator="cpu",
    strategy="ddp" if world > 1 else "auto",
    devices=local,
    num_nodes=world // local,
    max_steps=args.steps,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[
        ModelCheckpoint(args.out, filename="{step}", every_n_train_steps=args.every, save_top_k=-1),
        TransomCallback(args.out, snapshot_every=args.snapshot_every),  # transom
    ],
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=latest(args.out))  # transom
if args.final and trainer.is_global_zero:
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    args.final.write_text(hashlib.sha256(parameters).hexdigest())
