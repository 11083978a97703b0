"""A rank of elastic replicas, which reports each of its steps, and in the end the parameters."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from transom_cli import recoverable
from transom_cli.ckpt import Checkpointer
from transom_cli.elastic import GlobalBatches
from transom_cli.integrations.recoverable import Context

FOLDER, KEPT, EVERY = Path(sys.argv[1]), sys.argv[2] == "kept", int(sys.argv[3])
LAST = FOLDER / "last"  # the number of the last step, once it is known
ELASTIC = os.environ.get("ELASTIC") != "no"
NOISE = 0.0 if ELASTIC else 0.1  # random numbers of each rank
PAUSE = float(os.environ.get("PAUSE", "0"))
SHARDS = int(os.environ.get("SHARDS", "1"))  # ranks of a replica: HSDP instead of DistributedDataParallel
SIZE, BATCH = 96, 24


def data() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    return (
        torch.randn(SIZE, 16, dtype=torch.float64, generator=made),
        torch.randn(SIZE, 1, dtype=torch.float64, generator=made),
    )


def build_model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1)).double()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)  # AdamW amplifies rounding


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build_model()
    return model, optimizer_of(model)


def sharded(model: torch.nn.Sequential) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("replicas", "shards"))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def train(ctx: Context) -> None:
    if SHARDS > 1:
        built = build_model()
        ctx.join("gloo")
        model = called = sharded(built)  # its groups end with the launch, so it cannot be kept
        optimizer = optimizer_of(model)
    else:
        model, optimizer = ctx.keep("model", build) if KEPT else build()
        ctx.join("gloo")
    torch.manual_seed(dist.get_rank())
    batches = GlobalBatches(SIZE, BATCH, micro_batch=4, seed=3)
    checkpointer = Checkpointer({"model": model, "optimizer": optimizer, "data": batches}, FOLDER / "ck", every=EVERY)
    done = checkpointer.restore() or 0
    called = DistributedDataParallel(model) if SHARDS == 1 else called
    inputs, targets = data()
    while done < (int(LAST.read_text()) if LAST.exists() else 10**9):
        time.sleep(0 if LAST.exists() else PAUSE)
        optimizer.zero_grad()
        taken = []
        for micro in batches.step():
            chosen = list(micro.samples)
            noisy = inputs[chosen] + NOISE * torch.randn(len(chosen), 1)
            with contextlib.nullcontext() if micro.last or SHARDS > 1 else called.no_sync():
                (torch.nn.functional.mse_loss(called(noisy), targets[chosen]) * micro.weight).backward()
            taken += chosen if micro.weight else []
        optimizer.step()
        done += 1
        about = {"step": done, "world": dist.get_world_size(), "entry": ctx.entry, "at": time.monotonic(),
                 "pid": os.getpid(), "launch": int(os.environ.get("TRANSOM_LAUNCH", "0"))}  # fmt: skip
        with (FOLDER / f"report-{os.environ['RANK']}").open("a") as file:
            print(json.dumps(about), file=file, flush=True)
        checkpointer.step(done)
    checkpointer.close()
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    torch.save([p.detach() for p in whole], FOLDER / f"final-{os.environ['RANK']}")
    if SHARDS > 1:
        dist.barrier()  # a rank that has its whole tensors may be ahead of the others
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.orig_argv = [sys.executable, *sys.argv]  # the test's ranks are forks of another program
    (recoverable(replicas="elastic", ranks_per_replica=SHARDS) if ELASTIC else recoverable)(train)()
