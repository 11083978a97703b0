"""A training script as nanoGPT's, which saves by torch.save and knows nothing of transom.

transom run -N 2 --set checkpoint.foreign.pattern='out/ckpt-*.pt' -- python train.py out
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path, help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds; a real step takes longer than this one")
parser.add_argument("--final", type=Path, help="file for a hash of the final parameters")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
if world > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
args.out.mkdir(exist_ok=True)
step = 0
if found := sorted(args.out.glob("ckpt-*.pt"), key=lambda path: int(path.stem.split("-")[1])):
    state = torch.load(found[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
print(f"from step {step}", flush=True)

while step < args.steps:
    time.sleep(args.step_delay)
    batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(step * world + rank))
    optimizer.zero_grad()
    began = time.perf_counter()
    loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        print(f"iter {step}: loss {loss.item():.4f}, time {1000 * (time.perf_counter() - began):.2f}ms", flush=True)
    if rank == 0 and step % args.every == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, args.out / f"ckpt-{step}.pt")

if args.final and rank == 0:
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    args.final.write_text(hashlib.sha256(parameters).hexdigest())
if world > 1:
    dist.destroy_process_group()
