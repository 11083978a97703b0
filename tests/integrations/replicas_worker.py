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
SIZE, BATCH = 96, 24


def data() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    return (
        torch.randn(SIZE, 16, dtype=torch.float64, generator=made),
        torch.randn(SIZE, 1, dtype=torch.float64, generator=made),
    )


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    layers = torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    model = torch.nn.Sequential(*layers).double()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)  # AdamW amplifies rounding


def train(ctx: Context) -> None:
    model, optimizer = ctx.keep("model", build) if KEPT else build()
    ctx.join("gloo")
    torch.manual_seed(dist.get_rank())
    batches = GlobalBatches(SIZE, BATCH, micro_batch=4, seed=3)
    checkpointer = Checkpointer({"model": model, "optimizer": optimizer, "data": batches}, FOLDER / "ck", every=EVERY)
    done = checkpointer.restore() or 0
    called = DistributedDataParallel(model)
    inputs, targets = data()
    while done < (int(LAST.read_text()) if LAST.exists() else 10**9):
        time.sleep(0 if LAST.exists() else PAUSE)
        optimizer.zero_grad()
        taken = []
        for micro in batches.step():
            chosen = list(micro.samples)
            noisy = inputs[chosen] + NOISE * torch.randn(len(chosen), 1)
            with contextlib.nullcontext() if micro.last else called.no_sync():
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
    torch.save([p.detach() for p in model.parameters()], FOLDER / f"final-{os.environ['RANK']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.orig_argv = [sys.executable, *sys.argv]  # the test's ranks are forks of another program
    (recoverable(replicas="elastic") if ELASTIC else recoverable)(train)()
