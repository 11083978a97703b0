"""The training of bench/elastic_peers.py: the same model, data and global batch, with three ways to keep the position.

exact: GlobalBatches, VirtualRanks and a Checkpointer. usual: DDP, DistributedSampler's order, and a snapshot of model,
optimizer and step by rank 0, from which the data position is computed, as trainers do that skip the first batches.
torchft: each rank is a replica group of its own (`--replica`), with its part of the data, as torchft's sampler has it.

Each rank appends the samples of each step to a file of its own, with the time and the number of ranks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from transom_cli import beat
from transom_cli.ckpt import Checkpointer
from transom_cli.elastic import GlobalBatches, VirtualRanks

SIZE, BATCH, RANKS, EVERY = 12_000, 48, 4, 5

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=("exact", "usual", "torchft"))
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--delay", type=float, default=0.25)
parser.add_argument("--replica", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
if args.way == "torchft":
    rank, world = args.replica, RANKS
else:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(SIZE, 16)
labels = inputs[:, :4].argmax(dim=1)
trace = (args.folder / f"trace-{time.time_ns()}-{rank}.jsonl").open("a", buffering=1)


def note(step: int, samples: list[int]) -> None:
    trace.write(json.dumps({"at": time.time(), "step": step, "world": world, "rank": rank, "samples": samples}) + "\n")


def loss_of(net: torch.nn.Module, samples: list[int]) -> torch.Tensor:
    return functional.cross_entropy(net(inputs[samples]), labels[samples])


if args.way == "exact":
    batches = GlobalBatches(SIZE, BATCH, BATCH // RANKS)
    virtual = VirtualRanks(model, batches, RANKS)
    checkpointer = Checkpointer({"model": model, "optim": optimizer, "data": batches}, every=EVERY)
    for step in range(checkpointer.restore() or 0, args.steps):
        used: list[int] = []

        def compute(samples: list[int], used: list[int] = used) -> torch.Tensor:
            used += samples
            return loss_of(model, samples)

        optimizer.zero_grad()
        virtual.backward(compute)
        optimizer.step()
        time.sleep(args.delay)
        note(step, used)
        checkpointer.step(step + 1)
    checkpointer.close()
elif args.way == "torchft":
    from datetime import timedelta

    import torchft

    seconds = timedelta(seconds=5)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        torchft.ProcessGroupGloo(timeout=seconds), min_replica_size=2, replica_id=f"replica{rank}",
        load_state_dict=lambda held: (model.load_state_dict(held["model"]), optimizer.load_state_dict(held["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
    )  # fmt: skip
    net, stepper = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0)).tolist()
    each = BATCH // RANKS
    while (step := manager.current_step()) < args.steps:
        mine = order[rank::RANKS][step * each : (step + 1) * each]
        stepper.zero_grad()
        loss_of(net, mine).backward()
        took_part, world = manager.is_participating(), manager.num_participants()
        stepper.step()
        time.sleep(args.delay)
        if manager.current_step() == step + 1 and took_part:
            note(step, mine)
else:
    snapshot, start = args.folder / "snapshot.pt", 0
    if snapshot.exists():
        held = torch.load(snapshot)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optim"])
        start = held["step"]
    net = DistributedDataParallel(model)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(start, args.steps):
        first = step * BATCH // RANKS * world  # the batch of a rank stays the same
        mine = [order[n % SIZE] for n in range(first + rank, first + BATCH // RANKS * world, world)]
        optimizer.zero_grad()
        loss_of(net, mine).backward()
        optimizer.step()
        time.sleep(args.delay)
        note(step, mine)
        beat(step + 1)
        if rank == 0 and (step + 1) % EVERY == 0:
            state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": step + 1}
            torch.save(state, snapshot.with_suffix(".tmp"))
            snapshot.with_suffix(".tmp").replace(snapshot)
if rank == 0:
    with torch.no_grad():
        (args.folder / "loss").write_text(f"{loss_of(model, list(range(SIZE))).item():.6f}")
if args.way == "torchft":
    manager.shutdown(wait=False)
else:
    dist.destroy_process_group()
