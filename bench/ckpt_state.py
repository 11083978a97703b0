"""One rank's part of the state that bench/ckpt.py saves, with contents that any process can compute for any step.

Every byte comes from one seeded block, at an offset that depends on tensor and rank. Each tensor also contains the step
number at its beginning, middle and end. A restored state can thus be compared bit for bit without a second copy, and a
copy that was still in progress when training changed the state is detected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ckpt_plan import Item
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

_BLOCK = (4 << 20) + 72  # bytes; not a power of two, so that pieces at round offsets differ
_STAMP = 4  # bytes


class State:
    """`tensors`: what a trainer would hold, DTensors where sharded. `local`: the plain tensors below them."""

    def __init__(self, items: Sequence[Item], rank: int, ranks: int, mesh: DeviceMesh | None) -> None:
        """With a mesh, rows are sharded over it as FSDP2 does; without, every rank has the whole state."""
        self._origins: list[int] = []  # by tensor: where its contents begin in the block
        self.local: dict[str, torch.Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for item in items:
            shape = item.local(rank, ranks) if mesh is not None else item.shape
            local = torch.zeros(shape, dtype=getattr(torch, item.dtype))
            local.fill_(1)  # touched, as a trainer's are; zeros alone would be the kernel's one zero page
            part = rank if mesh is not None and item.rows else 0  # what is whole is the same on every rank
            self._origins.append((len(self._origins) * 7919 + part * 104_729) * 8 % _BLOCK)
            self.local[item.name] = self.tensors[item.name] = local
            if mesh is not None and item.rows:
                whole = torch.empty(item.shape, device="meta")
                self.tensors[item.name] = DTensor.from_local(
                    local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
                )
        generator = torch.Generator().manual_seed(741)
        self._block = torch.randint(0, 256, (_BLOCK,), dtype=torch.uint8, generator=generator)

    def fill(self) -> None:
        for index, local in enumerate(self.local.values()):
            self._contents(index, _bytes(local))

    def stamp(self, step: int) -> None:
        """Mark every tensor as that of `step`; below 2**31."""
        mark = torch.tensor([step], dtype=torch.int32).view(torch.uint8)
        for local in self.local.values():
            _stamp(_bytes(local), mark)

    def scrub(self) -> None:
        """Before a load: nothing of what is to come may be there."""
        for local in self.local.values():
            local.fill_(1)

    def wrong(self, step: int) -> str:
        """Whether this is the state of `step`, bit for bit: "", or the first tensor that differs."""
        mark = torch.tensor([step], dtype=torch.int32).view(torch.uint8)
        for index, (name, local) in enumerate(self.local.items()):
            found = _bytes(local)
            expected = torch.empty_like(found)
            self._contents(index, expected)
            _stamp(expected, mark)
            if not torch.equal(found, expected):
                return name
        return ""

    def put(self, loaded: dict[str, torch.Tensor]) -> None:
        """Copy what a method returned into the trainer's tensors; KeyError when one is missing."""
        for name, local in self.local.items():
            local.copy_(loaded[name])

    def _contents(self, index: int, target: torch.Tensor) -> None:
        done, at = 0, self._origins[index]
        while done < target.numel():
            piece = min(target.numel() - done, _BLOCK - at)
            target[done : done + piece] = self._block[at : at + piece]
            done, at = done + piece, 0


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _stamp(target: torch.Tensor, mark: torch.Tensor) -> None:
    size = target.numel()
    if size >= _STAMP:
        for at in (0, (size - _STAMP) // 2, size - _STAMP):
            target[at : at + _STAMP] = mark
