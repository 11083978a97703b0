"""A training with DistributedDataParallel and a guard against silent corruption, on few weights."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from transom_cli import beat
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.guard import guard


def total(model: nn.Module) -> str:
    return repr(sum(float(p.detach().double().sum()) for p in model.parameters()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--software", action="store_true", help="rank 1 changes a weight by itself")
    parser.add_argument("--pause", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)  # sums of several threads have other bits
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Otherwise DDP orders its buckets again after a start's first step: sums in another order, for that step.
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    checkpointer = Checkpointer({"model": model, "optimizer": optimizer}, every=10, keep=100)
    done = checkpointer.restore() or 0
    watching = guard(parallel, optimizer, step=done, cycle=6, budget=0.5)
    for step in range(done + 1, args.steps + 1):
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        loss = parallel(data).square().mean()
        loss.backward()
        optimizer.step()
        if args.software and rank == 1 and step > 60:
            model[0].weight.data[0, 0] += 1e-3
        time.sleep(args.pause)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} {total(model)}", flush=True)
        beat(step, float(loss.detach()), grad_norm=watching.grad_norm)
        checkpointer.save(step)
    checkpointer.close()
    if os.environ["RANK"] == "0":
        print(f"checked {watching.checked} products, {watching.failed or 'no failure'}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
