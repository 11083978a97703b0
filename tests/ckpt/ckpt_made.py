"""Checkpoints for tests: small trainings that are deterministic, and directories made without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.ckpt.names import MEMORY, SAVED


def bare_checkpoint(directory: Path, step: int, *, data: bytes = b"weights") -> Path:
    """A checkpoint that verifies but holds nothing torch could load."""
    path = directory / f"step-{step}"
    path.mkdir(parents=True)
    (path / ".metadata").write_bytes(b"metadata of %d" % step)
    (path / "__0_0.distcp").write_bytes(data * 100)
    entries = tuple(files.measure(path / name) for name in (".metadata", "__0_0.distcp"))
    manifest = Manifest(step, 1, "1.0", "2.6.0", "2025-01-01T00:00:00+00:00", entries)
    files.write_new(path / "manifest.json", encode(manifest))
    return path


def names_in(directory: Path) -> list[str]:
    """But for the mark by which memory holders know the directory."""
    return sorted(path.name for path in directory.iterdir() if path.name not in (MEMORY, SAVED))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)


def odd_tensors() -> dict:
    """Every kind of tensor whose bits a format or a copy could lose."""
    import torch

    torch.manual_seed(3)
    base = torch.randn(4, 6)
    nan = torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)  # payloads must live
    return {
        "bf16": torch.randn(7, 5).bfloat16(),
        "e4m3": torch.randn(9).to(torch.float8_e4m3fn),
        "e5m2": torch.randn(9).to(torch.float8_e5m2),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "transposed": base.t(),
        "sliced": base[:, 1::2],
        "tied": base,
        "tied again": base,
        "complex": torch.randn(3, dtype=torch.complex64),
        "bool": torch.tensor([True, False]),
        "u16": torch.tensor([1, 65535], dtype=torch.uint16),
        "long": torch.tensor([-(2**63), 2**63 - 1]),
        "nan": nan,
        "large": torch.randn(3, 1 << 20),  # more than is read or written at a time
    }


def bits(tensor) -> tuple:
    import torch

    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Data:
    """A data source with a position, per rank; draws from all of Python's, numpy's and torch's generators."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.position = rank, 0

    def batch(self):
        import random

        import numpy as np
        import torch

        self.position += 1
        x = torch.randn(8, 16) + random.random() + float(np.random.rand()) + self.position * (self.rank + 1)
        return x, x.flip(1)

    def state_dict(self):
        return {"position": self.position, "seen": {}}

    def load_state_dict(self, state):
        assert state["seen"] == {}
        self.position = state["position"]


def seed_all(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Training:
    """`spread` wraps or shards the model (DDP, FSDP2). `seed` decides everything that a restore must overwrite."""

    def __init__(self, seed: int, rank: int = 0, spread=lambda model: model) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 16))
        self.model = spread(model)
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": rest, "weight_decay": 0.0}, {"params": decay}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.data = Data(rank)
        self.state = {
            "model": self.model,
            "optim": self.optimizer,
            "schedule": self.schedule,
            "data": self.data,
            "mean": torch.zeros(()),
            "note": {"losses": []},
        }
        seed_all(seed * 7 + rank)

    def step(self) -> None:
        x, y = self.data.batch()
        loss = (self.model(x) - y).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.state["mean"].mul_(0.9)
        self.state["note"]["losses"].append(self.schedule.get_last_lr()[0])

    def digest(self) -> str:
        """Over every bit that the next step depends on, this rank's part of it."""
        import random

        import numpy as np
        import torch

        digest = hashlib.sha256()

        def add(value) -> None:
            if isinstance(value, torch.Tensor):
                local = value.to_local() if hasattr(value, "to_local") else value
                digest.update(f"{value.dtype}{tuple(local.shape)}".encode())
                digest.update(local.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(value, dict):
                for key in value:
                    digest.update(repr(key).encode())
                    add(value[key])
            elif isinstance(value, (list, tuple)):
                for item in value:
                    add(item)
            else:
                digest.update(repr(value).encode())

        add(list(self.model.state_dict().values()))
        add(self.optimizer.state_dict())
        add(self.schedule.state_dict())
        add([self.data.position, self.state["mean"].reshape(1), self.state["note"]])
        add([random.getstate(), list(np.random.get_state()), torch.get_rng_state()])
        return digest.hexdigest()
