"""One hash over the result of a training: all parameters and optimizer tensors."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor on the CPU. For a tensor sharded by FSDP, this is a collective call."""
    gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().cpu().contiguous()


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """Return a SHA-256 hash over names, shapes and bytes in the model's order. Call this on every rank."""
    digest = hashlib.sha256(f"step {step}\n".encode())
    count = size = 0
    for name, parameter in model.named_parameters():
        state = {key: value for key, value in optimizer.state[parameter].items() if torch.is_tensor(value)}
        for key, tensor in [("", parameter), *sorted(state.items())]:
            full = whole(tensor)
            raw = full.reshape(-1).view(torch.uint8).numpy()
            digest.update(f"{name} {key} {full.dtype} {tuple(full.shape)}\n".encode())
            digest.update(raw.data)
            count += 1
            size += raw.nbytes
    return {"schema": 1, "step": step, "sha256": digest.hexdigest(), "tensors": count, "bytes": size}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file by rename, so that readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
