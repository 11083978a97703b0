"""Which rank this is, and how it joins and leaves the others."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import distributed, nn


@dataclass(frozen=True)
class Place:
    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Place:
        """From RANK and its kin (torchrun, transom), else from an srun step's own variables, else alone."""
        if "RANK" in env:
            return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", "0")))
        # SLURM_PROCID is also set in a batch script, where it means nothing: only a step has this one.
        if "SLURM_STEP_NUM_TASKS" in env:
            return cls(int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_LOCALID"]))
        return cls()


def join(place: Place, *, group: bool) -> torch.device:
    """Pick the device, and (`group`) meet the other ranks: over NCCL with GPUs, else over gloo."""
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    if group:
        address = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        if address.startswith("127.") or address in ("localhost", "::1"):
            # gloo looks its own host name up otherwise, which on a small machine may lead nowhere.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            rank=place.rank,
            world_size=place.world,
            device_id=device if device.type == "cuda" else None,
        )
    return device


def spread(model: nn.Module, *, fsdp: bool, device: torch.device) -> nn.Module:
    """The module to call in training: FSDP2 shards `model` in place, DDP wraps it; alone it stays what it is."""
    if not distributed.is_initialized():
        return model
    if fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    devices = [device.index] if device.type == "cuda" else None
    called = nn.parallel.DistributedDataParallel(model, device_ids=devices)
    # After the first pass it sees, DDP lays out its gradient buckets anew, in the order in which gradients came. In a
    # resumed run that is another step's pass, and from three ranks on its sums would be taken in another order: other
    # bits. One pass of no consequence puts that change before the first step of every run.
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    called(token, token).backward()
    model.zero_grad(set_to_none=True)
    return called


def leave() -> None:
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def die(error: Exception) -> NoReturn:
    """Print the error and end at once, with its own exit code if it has one (transom's errors do), else 1.

    A normal exit would first wait for threads (gloo's, the checkpoint
    writer's) that may themselves wait for the peer whose loss brought us
    here, and this rank would seem to be alive.
    """
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(getattr(error, "exit_code", 1))
