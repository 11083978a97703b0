"""A small training in PyTorch that keeps a snapshot of every step in memory, and makes few or none of them durable.

Its state is a model, AdamW and each rank's random numbers: the same steps give the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from transom_cli import beat, recoverable
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.integrations.recoverable import Context

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--delay", type=float, default=0.1)
parser.add_argument("--every", type=int, default=1, help="steps between snapshots")
parser.add_argument("--persist", type=int, default=1000, help="every so many snapshots one becomes durable")
parser.add_argument("--hang", type=int, default=-1, help="after this step, in the run's first start")
parser.add_argument("--building", type=float, default=0.0, help="seconds to build the model before the training")
parser.add_argument("--final", type=Path, required=True, help="rank 0 writes a hash of the final model there")
args = parser.parse_args()

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def build() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))


if args.building:
    built = build()
    time.sleep(args.building)
    print(f"rank {rank} has built the model, random state {torch.get_rng_state().sum().item()}", flush=True)


@recoverable
def train(ctx: Context) -> None:
    dist.init_process_group("gloo")
    model = built if args.building else build()
    called = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)

    checkpointer = Checkpointer({"model": model, "optimizer": optimizer}, every=args.every, persist=args.persist)
    done = checkpointer.restore() or 0
    print(f"rank {rank} goes on from step {done}, entry {ctx.entry}", flush=True)
    for step in range(done + 1, args.steps + 1):
        time.sleep(args.delay)
        optimizer.zero_grad(set_to_none=True)
        loss = called(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        beat(step, loss=loss.item())
        checkpointer.save(step)
        while step == args.hang and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            time.sleep(60)
    checkpointer.close()
    if rank == 0:
        data = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
        args.final.write_text(hashlib.sha256(data).hexdigest())
    dist.destroy_process_group()


train()
