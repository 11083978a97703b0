"""What does a result that is independent of the number of ranks cost? VirtualRanks and DDP in turns, on the same work.

    python bench/virtual_ranks.py [--ranks 2] [--width 1024] [--steps 20] [--rounds 4]

A step trains an MLP on a global batch of 64. Prints seconds a step: the median over all rounds, with the quartiles, and
the ratio. Ranks are processes on this machine that communicate over gloo.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from transom_cli.elastic import GlobalBatches, VirtualRanks

BATCH = 64


def steps_of(method: str, args: argparse.Namespace) -> list[float]:
    torch.manual_seed(0)
    width = args.width
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))
    data = torch.randn(1000, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = GlobalBatches(len(data), BATCH, BATCH // args.ranks)
    virtual = VirtualRanks(model, batches, args.ranks) if method == "virtual" else None
    ddp = None if virtual else DistributedDataParallel(model)
    took = []
    for _ in range(args.steps):
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        if virtual is not None:
            virtual.backward(lambda samples: model(data[samples]).pow(2).mean())
        else:
            (micro,) = batches.step()
            assert ddp is not None
            (ddp(data[list(micro.samples)]).pow(2).mean() * micro.weight).backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
    return took[2:]


def rank_main(rank: int, args: argparse.Namespace, meeting: str, answer: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=args.ranks)
    found: dict[str, list[float]] = {"ddp": [], "virtual": []}
    for _ in range(args.rounds):
        for method, times in found.items():
            times += steps_of(method, args)
    if rank == 0:
        answer.put(found)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        answer = context.Queue()
        ranks = [
            context.Process(target=rank_main, args=(n, args, f"{folder}/meeting", answer)) for n in range(args.ranks)
        ]
        for one in ranks:
            one.start()
        found = answer.get()
        for one in ranks:
            one.join()
    medians = {}
    for method, times in found.items():
        low, medians[method], high = statistics.quantiles(times, n=4)
        print(f"{method:8} {medians[method]:.4f} s a step (quartiles {low:.4f} to {high:.4f}, n = {len(times)})")
    print(f"virtual / ddp: {medians['virtual'] / medians['ddp']:.2f}")
    print(f"{args.ranks} ranks, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
