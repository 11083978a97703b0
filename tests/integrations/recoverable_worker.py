"""A rank that trains until it is killed, and can be entered again: it writes a line in each entry, after two steps."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from transom_cli import beat, recoverable
from transom_cli.integrations.recoverable import Context

torch.set_num_threads(1)
sys.orig_argv = [sys.executable, *sys.argv]  # the test's ranks are forks of another program
RANK = os.environ["RANK"]
REPORT = Path(sys.argv[1]) / f"report-{RANK}"


@recoverable
def train(ctx: Context) -> None:
    dist.init_process_group("gloo")
    everyone = dist.new_group(list(range(dist.get_world_size())))
    model = ctx.keep("model", lambda: torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)))
    called = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while True:
        step += 1
        optimizer.zero_grad()
        called(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(1), group=everyone)
        if step == 2:
            found = {
                "launch": int(os.environ["TRANSOM_LAUNCH"]), "entry": ctx.entry, "pid": os.getpid(),
                "groups": len(dist.distributed_c10d._world.pg_map), "fds": len(list(Path("/proc/self/fd").iterdir())),
                "threads": len(list(Path("/proc/self/task").iterdir())),
                "kilobytes": 4 * int(Path("/proc/self/statm").read_text().split()[1]),
            }  # fmt: skip
            with REPORT.open("a") as file:
                print(json.dumps(found), file=file, flush=True)
        beat(step)


train()
