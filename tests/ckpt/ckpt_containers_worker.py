"""One of two gloo ranks that train with torchtitan's containers. Usage: ckpt_containers_worker.py DIRECTORY UNTIL [DIE]

KIND is in the environment: fsdp, or plain (each rank holds all). Trains to step UNTIL, from the newest checkpoint; with
DIE all ranks kill themselves after that step. Prints as JSON where it began, and a digest of all that it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from ckpt_containers import ModelWrapper, OptimizersContainer
from torch import nn
from torch.distributed.fsdp import fully_shard

from transom_cli.ckpt.checkpointer import Checkpointer


class TrainState:
    """As torchtitan's: plain values and tensors of no mesh."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step, dtype=torch.int32)}

    def load_state_dict(self, state) -> None:
        self.step = int(state["step"].item())


def digest(model: nn.Module, optimizer: OptimizersContainer) -> str:
    total = hashlib.sha256()
    held = [*model.state_dict().items()]
    for inner in optimizer.optimizers:
        names = {p: name for name, p in model.named_parameters()}
        held += [(f"{names[p]}.{key}", value) for p, state in inner.state.items() for key, value in state.items()]
        held += [
            (f"group.{key}", value) for group in inner.param_groups for key, value in group.items() if key != "params"
        ]
    for key, value in sorted(held, key=lambda one: one[0]):
        total.update(key.encode())
        local = value.to_local() if hasattr(value, "to_local") else value
        total.update(
            local.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
            if torch.is_tensor(local)
            else repr(local).encode()
        )
    return total.hexdigest()


def main() -> None:
    directory, until = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    if os.environ["KIND"] == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    optimizer = OptimizersContainer([model], lr=1e-2)
    train_state = TrainState()
    state = {"model": ModelWrapper([model]), "optimizer": optimizer, "train_state": train_state}
    torch.manual_seed(11)
    checkpointer = Checkpointer(state, directory, every=2)
    unstepped = all(not inner.state for inner in optimizer.optimizers)
    began = checkpointer.restore()
    if began is None:
        unstepped = unstepped and all(not inner.state for inner in optimizer.optimizers)
    for step in range(began or 0, until):
        torch.manual_seed(1000 * step)
        x = torch.randn(4, 8)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if os.environ["KIND"] != "fsdp":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        train_state.step = step + 1
        checkpointer.save(step + 1)
    checkpointer.wait(strict=True)
    found = {"began": began, "unstepped": unstepped, "digest": digest(model, optimizer), "position": train_state.step}
    print(json.dumps(found), flush=True)
    dist.barrier()
    if len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.close(strict=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
