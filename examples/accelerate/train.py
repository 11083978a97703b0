"""A tiny network in a loop of your own with accelerate, trained without downloads. The lines for transom are marked.

transom run -N 2 -- accelerate launch --cpu train.py out
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from transom_cli.integrations.accelerate import attach, latest  # transom

parser = argparse.ArgumentParser()
parser.add_argument("out", help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--snapshot-every", type=int, help="steps between two snapshots in memory")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds; a real step takes longer than this one")
parser.add_argument("--final", type=Path, help="file for a hash of the final parameters")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
features = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
dataset = torch.utils.data.TensorDataset(features)
order = torch.Generator().manual_seed(2)  # else each pass over the data changes the random numbers of dropout
loader = torch.utils.data.DataLoader(dataset, batch_size=4, generator=order)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
run = attach(accelerator, snapshot_every=args.snapshot_every)  # transom
if path := latest(args.out):  # transom
    accelerator.load_state(path)

while run.step < args.steps and not run.stop:
    done = run.step % len(loader)
    for (batch,) in accelerator.skip_first_batches(loader, done) if done else loader:
        time.sleep(args.step_delay)
        loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if run.step % args.every == 0 or run.due:  # transom: a final checkpoint is due
            accelerator.save_state(f"{args.out}/checkpoint_{run.step}")
        run.snapshot()  # transom
        if run.step >= args.steps or run.stop:
            break

if args.final and accelerator.is_main_process:
    parameters = b"".join(p.detach().numpy().tobytes() for p in accelerator.unwrap_model(model).parameters())
    args.final.write_text(hashlib.sha256(parameters).hexdigest())
accelerator.end_training()
