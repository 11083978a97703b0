"""Run trainings whose ranks are forked from this process, which has imported torch, and print what they end with.

Reads phases from stdin: a list of {"directory", "world", "steps", "kill"}. In the step "kill", unless it is 0, all
ranks kill themselves. Prints one line: for each phase what its ranks ended with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from transom_cli.ckpt import Checkpointer
from transom_cli.elastic import GlobalBatches, VirtualRanks

SIZE = 103


def train(rank: int, phase: dict[str, Any], meeting: str, answer: Any) -> None:
    world = phase["world"]
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = GlobalBatches(SIZE, global_batch=12, micro_batch=2)
    virtual = VirtualRanks(model, batches, count=4)
    state = {"model": model, "optim": optimizer, "data": batches}
    ck = Checkpointer(state, phase["directory"], every=1)
    start = ck.restore() or 0
    chance = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(SIZE, 16, generator=chance), torch.randint(0, 4, (SIZE,), generator=chance)
    losses = []

    def loss_of(samples: Any) -> torch.Tensor:
        chosen = list(samples)
        return functional.cross_entropy(model(inputs[chosen]), labels[chosen])

    for step in range(start, phase["steps"]):
        optimizer.zero_grad()
        loss = virtual.backward(loss_of)
        if step + 1 == phase["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        losses.append(float(loss))
        ck.step(step + 1, losses[-1])
    ck.close()
    found = hashlib.sha256()
    for held in (model.state_dict(), *(optimizer.state[one] for one in model.parameters())):
        for value in held.values():
            found.update(value.numpy().tobytes())
    answer.put((rank, {"digest": found.hexdigest(), "losses": losses, "start": start, "position": batches.position}))
    answer.close()
    answer.join_thread()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    done = []
    for phase in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            answer = context.Queue()
            ranks = [
                context.Process(target=train, args=(rank, phase, f"{folder}/meeting", answer))
                for rank in range(phase["world"])
            ]
            for one in ranks:
                one.start()
            found = {} if phase["kill"] else dict(answer.get(timeout=100) for _ in ranks)
            for one in ranks:
                one.join()
            codes = [one.exitcode for one in ranks]
            assert codes == ([-signal.SIGKILL] if phase["kill"] else [0]) * len(ranks), codes
            done.append([found[rank] for rank in sorted(found)])
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(done))


if __name__ == "__main__":
    main()
