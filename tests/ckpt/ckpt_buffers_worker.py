"""One of two gloo ranks that train with batch norm. Usage: ckpt_buffers_worker.py SCENARIO,... DIRECTORY.

Prints what it found, as JSON, last.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ckpt_made import names_in
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from transom_cli.ckpt.checkpointer import Checkpointer

RANK = int(os.environ["RANK"])


class Training:
    """Each rank has batches of its own. The gradients are averaged by DDP, or here."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.bare = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        model: nn.Module = self.bare
        if kind != "by hand":
            model = DistributedDataParallel(model, broadcast_buffers=kind == "broadcast")
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.kind = kind

    def state(self) -> dict:
        return {"model": self.model, "optim": self.optimizer}

    def train(self, first: int, last: int, checkpointer: Checkpointer | None = None) -> None:
        for step in range(first, last + 1):
            torch.manual_seed(100 * step + RANK)
            x = torch.randn(8, 4)
            self.optimizer.zero_grad()
            (self.model(x) - x).pow(2).mean().backward()
            if self.kind == "by hand":
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad)
            self.optimizer.step()
            if checkpointer is not None:
                checkpointer.save(step)

    def digest(self) -> list:
        self.bare.eval()
        torch.manual_seed(1)
        return [*(t.tolist() for t in self.bare.state_dict().values()), self.bare(torch.randn(2, 4)).tolist()]


def resumed(kind: str, directory: Path, **options) -> dict:
    """Whether a resumed training continues bit for bit on this rank, and whether its buffers are rank 0's."""
    whole = Training(kind, 1)
    whole.train(1, 6)
    first = Training(kind, 1)
    checkpointer = Checkpointer(first.state(), directory, every=1, **options)
    checkpointer.save(0)  # no rank's buffers differ yet
    first.train(1, 3, checkpointer)
    checkpointer.close(strict=True)
    buffers = [first.bare[1].running_mean.tolist()]
    own = list(buffers)
    dist.broadcast_object_list(buffers, src=0)
    again = Training(kind, 7)
    checkpointer = Checkpointer(again.state(), directory, every=1, **options)
    step = checkpointer.restore()
    checkpointer.close()
    found = {"step": step, "differ": own != buffers}
    found["own"] = again.bare[1].running_mean.tolist() == own[0]
    found["rank 0's"] = again.bare[1].running_mean.tolist() == buffers[0]
    again.train(4, 6)
    found["continues"] = again.digest() == whole.digest()
    return found


def broadcast(directory: Path) -> dict:
    return resumed("broadcast", directory / "broadcast")


def declared(directory: Path) -> dict:
    return resumed("by hand", directory / "declared", per_rank=["model.1.running_*"])


def first(directory: Path) -> dict:
    return resumed("by hand", directory / "first", from_rank_0=["model.1.running_*"])


def drifting(directory: Path) -> dict:
    """They are equal at the first save, and drift apart later: which rank's would be saved?"""
    training = Training("by hand", 1)
    training.train(1, 1)
    for buffer in training.bare.buffers():
        dist.broadcast(buffer, src=0)
    checkpointer = Checkpointer(training.state(), directory / "drifting", every=1)
    checkpointer.save(1)
    checkpointer.wait(strict=True)
    raised = []
    for step in (2, 3):
        try:
            training.train(step, step, checkpointer)
            checkpointer.wait()
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    why = checkpointer.last_error.why if checkpointer.last_error else ""
    checkpointer.close()
    dist.barrier()
    return {"raised": raised, "there": names_in(directory / "drifting"), "last_error": why}


def values(directory: Path) -> dict:
    """The same for a plain value, and for a tensor of the trainer's own; a dict's order does not matter."""
    order = {1: 2, 3: 4} if RANK == 0 else {3: 4, 1: 2}
    state: dict = {"note": {"tokens": 0}, "mean": torch.zeros(2), "order": order, "pair": (torch.ones(2), 1)}
    checkpointer = Checkpointer(state, directory / "values", every=1)
    saved = []
    for step in (1, 2, 3):
        state["note"]["tokens"] = step if step < 3 else step + RANK
        state["mean"] += 1
        checkpointer.save(step)
        checkpointer.wait()
        saved.append(checkpointer.last_error.why if checkpointer.last_error else "")
    try:
        checkpointer.save(4)
        raised = ""
    except Exception as error:
        raised = str(error)
    checkpointer.close()
    return {"saved": saved, "raised": raised}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: globals()[name](Path(sys.argv[2])) for name in sys.argv[1].split(",")}
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
