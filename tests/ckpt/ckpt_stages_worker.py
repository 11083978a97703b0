"""One rank of a pipeline-parallel training: ckpt_stages_worker.py save|restore LAYERS DIRECTORY [--drop LAYER].

LAYERS: by rank, separated by slashes: "0,1/2,3" are two stages of two layers. Every rank has its own keys, and its own
optimizer. `save` makes step 1 durable and keeps step 2 in memory. Prints what it found, as JSON, last.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.errors import TransomError

RANK = int(os.environ.get("RANK", "0"))


def training(layers: list[int], seed: int) -> dict:
    """A stage that has made a step, whose values depend on the layer and the seed alone."""
    stage = nn.ModuleDict()
    for layer in layers:
        torch.manual_seed(100 * seed + layer)
        stage[f"l{layer}"] = nn.Linear(4, 4)
    weights = [p for p in stage.parameters() if p.ndim > 1]
    biases = [p for p in stage.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.1 * seed)
    for parameter in stage.parameters():
        parameter.grad = parameter.detach() * seed
    optimizer.step()
    return {"model": stage, "optim": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


def same(ours: dict, expected: dict) -> bool:
    optimizers = ours["optim"], expected["optim"]
    for mine, other in zip(ours["model"].parameters(), expected["model"].parameters(), strict=True):
        held, wanted = (one.state[p] for one, p in zip(optimizers, (mine, other), strict=True))
        if not torch.equal(mine, other) or any(not torch.equal(held[key], wanted[key]) for key in wanted):
            return False
    groups = [[{k: v for k, v in g.items() if k != "params"} for g in one.param_groups] for one in optimizers]
    return groups[0] == groups[1]


def main() -> None:
    act, split, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    mine = [int(layer) for layer in split.split("/")[RANK].split(",")]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    found: dict[str, object] = {}
    if act == "save":
        state = training(mine, 1)
        checkpointer = Checkpointer(state, directory, every=1, persist=1000)
        assert checkpointer.restore() is None
        checkpointer.save(1, force=True)
        checkpointer.wait(strict=True)
        with torch.no_grad():
            for parameter in state["model"].parameters():
                parameter.add_(1)
        checkpointer.save(2)
        checkpointer.wait(strict=True)
        again = Checkpointer({**training(mine, 3)}, directory, every=1, persist=1000)
        found["memory"] = [again.restore(), same(again._restorer._state._entries, state)]
        os._exit(_print(found))  # nothing more becomes durable
    state = training(mine, 2)
    if "--more" in sys.argv and RANK == 0:
        state["model"]["l9"] = nn.Linear(4, 4)
    checkpointer = Checkpointer(state, directory, every=1, reshard=True)
    try:
        found["restored"] = checkpointer.restore()
        found["same"] = same(state, training(mine, 1))
    except TransomError as error:
        found["error"] = str(error)
    checkpointer.close()
    _print(found)


def _print(found: dict[str, object]) -> int:
    print(json.dumps(found), flush=True)
    if dist.is_initialized():
        dist.barrier()
    return 0


if __name__ == "__main__":
    main()
