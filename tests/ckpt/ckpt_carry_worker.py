"""One of two FSDP2 ranks. Usage: ckpt_carry_worker.py save|restore DIRECTORY... Prints what it has, as JSON, last."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from ckpt_made import Training
from torch.distributed.fsdp import fully_shard

from transom_cli.ckpt.checkpointer import Checkpointer


def sharded(model):
    fully_shard(model[0])
    return fully_shard(model)


def whole(training: Training) -> dict[str, str]:
    """The model's parameters and their moments, put together: a digest of each."""
    found = {}
    for name, parameter in training.model.named_parameters():
        for part, held in {"": parameter, **training.optimizer.state[parameter]}.items():
            tensor = held.full_tensor() if hasattr(held, "full_tensor") else held
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[f"{name} {part}"] = hashlib.sha256(data).hexdigest()
    return found


def main() -> None:
    task, *directories = sys.argv[1:]
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    found = []
    for directory in directories:
        training = Training(1 if task == "save" else 2, rank, sharded)
        checkpointer = Checkpointer(training.state, directory, every=1)
        step = checkpointer.restore()
        if task == "save":
            training.step()
            training.step()
            checkpointer.save(2)
        checkpointer.close(strict=True)
        found.append({"step": step, "whole": whole(training), "position": training.data.position})
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
