"""One of several gloo ranks whose states differ. Usage: ckpt_differing_worker.py SCENARIO DIRECTORY.

Prints what it found, as JSON, last.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ckpt_made import names_in
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.heartbeat import guard_record, paths

RANK = int(os.environ["RANK"])


class Experts(nn.Module):
    """A router that all ranks hold alike, and an expert of each rank's own: expert parallelism without DTensor."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.router = nn.Linear(4, 4)
        torch.manual_seed(seed + 100 + RANK)
        self.expert = nn.Linear(4, 4)


def saved(state: dict, directory: Path, **options) -> dict:
    """What two saves of it come to: what was raised, what was published, what is known of the last failure."""
    checkpointer = Checkpointer(state, directory, every=1, **options)
    raised = []
    for step in (1, 2):
        try:
            checkpointer.save(step)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    checkpointer.close()
    dist.barrier()
    why = checkpointer.last_error.why if checkpointer.last_error is not None else ""
    return {"raised": raised, "there": names_in(directory), "last_error": why}


def bits(*tensors) -> str:
    return "".join(bytes(t.detach().reshape(-1).view(torch.uint8).tolist()).hex() for t in tensors)


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def experts(directory: Path) -> dict:
    """The expert differs by rank, and nobody has said so."""
    return saved({"model": Experts()}, directory / "refused")


def declared(directory: Path) -> dict:
    """The same, as declared: each rank gets its own back."""
    model = Experts()
    model.expert.weight.data.mul_(1 + RANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.full_like(parameter, float(1 + RANK if name.startswith("expert") else 1))
    optimizer.step()
    state = {"model": model, "optim": optimizer, "own": torch.full((3,), float(RANK))}
    options = {"per_rank": ["model.expert", "optim.state.expert.*", "own"]}
    found = saved(state, directory / "declared", **options)
    again = Experts(7)
    optimizer2 = torch.optim.Adam(again.parameters(), lr=1e-2)
    state = {"model": again, "optim": optimizer2, "own": torch.zeros(3)}
    checkpointer = Checkpointer(state, directory / "declared", every=1, **options)
    found["restored"] = checkpointer.restore()
    checkpointer.close()
    moments = [optimizer2.state[p]["exp_avg"] for p in again.parameters()]
    wanted = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    found["same"] = bits(*again.parameters(), *moments) == bits(*model.parameters(), *wanted)
    found["own"] = state["own"].tolist()
    return found


def zero(directory: Path) -> dict:
    """A partition of the optimizer's state of each rank's own, of the same shape."""
    model = nn.Linear(4, 4)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = stepped(model)
    optimizer.state[model.weight]["exp_avg"].fill_(float(RANK))
    return saved({"model": model, "optim": optimizer}, directory / "zero")


def shapes(directory: Path) -> dict:
    """Tensor parallelism by hand: a part of a rank's own shape under one name."""
    return saved({"part": torch.ones(3 + RANK)}, directory / "shapes")


def values(directory: Path) -> dict:
    return saved({"note": {"tokens": 100 + RANK}, "mean": torch.zeros(2)}, directory / "values")


def alike(directory: Path) -> dict:
    """NaNs are alike where their bits are."""
    held = torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    return saved({"held": held, "note": {"a": [1, 2.5, None], "b": "text"}}, directory / "alike")


def signs(directory: Path) -> dict:
    """0.0 and -0.0 are equal numbers, and no equal bits."""
    return saved({"held": torch.tensor([0.0 if RANK == 0 else -0.0, 1.0])}, directory / "signs")


def buffers(directory: Path) -> dict:
    """Batch norm under DDP: rank 0's statistics are everybody's at the next forward, whichever module is saved."""
    found = {}
    for name, broadcast in (("broadcast", True), ("inner", True), ("local", False)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        spread = DistributedDataParallel(model, broadcast_buffers=broadcast)
        torch.manual_seed(RANK)
        spread(torch.randn(8, 4)).sum().backward()
        found[name] = saved({"model": model if name == "inner" else spread}, directory / name)
        again = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        if broadcast:
            checkpointer = Checkpointer({"model": again}, directory / name, every=1)
            checkpointer.restore()
            checkpointer.close()
            sent = [model[1].running_mean.tolist()]
            dist.broadcast_object_list(sent, src=0)
            found[name]["rank 0's"] = again[1].running_mean.tolist() == sent[0]
    return found


def later(directory: Path) -> dict:
    """What differs comes after the first save; and after a restore."""
    state: dict = {"held": torch.ones(4)}
    checkpointer = Checkpointer(state, directory / "later", every=1)
    raised = []
    state_of = {1: torch.ones(2), 2: torch.full((2,), float(RANK))}
    for step in (1, 2):
        state["more"] = state_of[step] if step == 1 else state_of[step].double()
        try:
            checkpointer.save(step)
        except Exception as error:
            raised.append(f"step {step}: {error}")
    checkpointer.close()
    dist.barrier()
    state["more"] = torch.ones(2)
    checkpointer = Checkpointer(state, directory / "later", every=1)
    restored = checkpointer.restore()
    state["held"].fill_(float(RANK))
    try:
        checkpointer.save(3)
    except Exception as error:
        raised.append(f"step 3: {error}")
    checkpointer.close()
    return {"raised": raised, "restored": restored, "there": names_in(directory / "later")}


def hsdp(directory: Path) -> dict:
    """Replicas of shards, on four ranks: alike, and with one replica that has gone its own way."""
    found = {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name in ("alike", "astray"):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        fully_shard(model, mesh=mesh)
        if name == "astray" and RANK == 3:
            with torch.no_grad():
                model[1].weight.to_local().add_(1.0)
        found[name] = saved({"model": model}, directory / f"hsdp-{name}")
    return found


def doubtful(directory: Path) -> dict:
    """Rank 1 computes wrong between a restore and the next save. A launcher reads the ranks' records."""
    model = nn.Linear(4, 4)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    state = {"model": model, "optim": stepped(model), "note": {"tokens": 1}}
    own, launch = saved(state, directory / "doubtful"), directory / "doubtful-attempt"
    os.environ |= {paths.BEAT_DIR: str(launch), paths.ATTEMPT_DIR: str(launch), paths.LAUNCH: "0"}
    found: dict = {"there": own["there"]}
    for scene in ("plain", "weight", "repeated"):  # the launcher has judged, so that nobody waits for it
        dist.barrier()
        if RANK == 0:
            shutil.rmtree(launch, ignore_errors=True)
            launch.mkdir()
            judged = {"judged": 0, "verdict": "differs_by_software", "open": {"repeat": -1, "step": 3}}
            (launch / "doubt.json").write_text(json.dumps(judged))
        dist.barrier()
        checkpointer = Checkpointer(state, directory / "doubtful", every=1)
        checkpointer.restore()
        if RANK == 1 and scene != "repeated":
            model.weight.data[0, 0] += 1e-3 if scene == "weight" else 0
            state["note"]["tokens"] += scene == "plain"
        raised = ""
        try:
            checkpointer.save(3)
        except Exception as error:
            raised = str(error)
        checkpointer.close()
        found[scene] = {"raised": raised, "record": guard_record.read(str(launch), 0, RANK)}
    for name in (paths.BEAT_DIR, paths.ATTEMPT_DIR):
        del os.environ[name]
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: globals()[name](Path(sys.argv[2])) for name in sys.argv[1].split(",")}
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
