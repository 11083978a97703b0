"""A rank of a guarded training with DistributedDataParallel. Prints what its guard has found, as JSON.

Arguments: rendezvous file, steps, faults as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from transom_cli.guard import guard
from transom_cli.inject import Fault, Injector


def main() -> None:
    meeting, steps, faults = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    if "--own" in sys.argv:  # a parameter that each rank has for itself
        model[2].bias.data.fill_(rank)
    sharded = "--fsdp" in sys.argv
    if sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    injector = Injector(model, optimizer, [Fault(**fault) for fault in faults])
    watching = guard(model, optimizer, cycle=0 if world == 2 else 6, budget=1e6)
    for step in range(steps):
        optimizer.zero_grad()
        model(
            torch.randn(4, 8, generator=torch.Generator().manual_seed(world * step + rank))
        ).square().mean().backward()
        for parameter in () if sharded else model.parameters():
            dist.all_reduce(parameter.grad)
        if "--own" in sys.argv:
            model[2].bias.grad = None
        optimizer.step()
    excluded = sorted(watching._replicas.excluded) if watching._replicas is not None else []
    found = {"events": watching.events, "checked": watching.checked, "excluded": excluded, "failed": watching.failed}
    print(json.dumps({**found, "uncompared": watching.uncompared}))
    injector.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
