"""The rank of this process, and its process group."""

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
        """Return the place given by RANK etc. (torchrun, transom), or by srun's variables, or of a single process."""
        if "RANK" in env:
            return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", "0")))
        # SLURM_PROCID is also set in a batch script, where it means nothing. Only a step has this variable.
        if "SLURM_STEP_NUM_TASKS" in env:
            return cls(int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_LOCALID"]))
        return cls()


def join(place: Place, *, group: bool) -> torch.device:
    """Choose the device and, if `group`, join the other ranks: over NCCL with GPUs, otherwise over gloo."""
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
            # Otherwise gloo resolves its host name, which may fail on a small machine.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            rank=place.rank,
            world_size=place.world,
            device_id=device if device.type == "cuda" else None,
        )
    return device


def spread(model: nn.Module, *, fsdp: bool, device: torch.device) -> nn.Module:
    """Return the module to train: sharded in place by FSDP2, wrapped by DDP, or unchanged for one process."""
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
    # After the first pass that it sees, DDP rebuilds its gradient buckets in the order in which gradients arrived. A
    # resumed run would do that at another step. With three ranks or more, it would then add gradients in another order,
    # with other bits as the result. An idle pass moves this change before the first step of every run.
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    called(token, token).backward()
    model.zero_grad(set_to_none=True)
    return called


def leave() -> None:
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def die(error: Exception) -> NoReturn:
    """Print the error and exit at once, with the error's exit code if it has one (transom's errors do), else 1.

    A normal exit would first wait for the threads of gloo and of the
    checkpoint writer. These may wait for the lost peer, and this rank would
    seem to be alive.
    """
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(getattr(error, "exit_code", 1))
