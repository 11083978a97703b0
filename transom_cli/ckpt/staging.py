"""The copy that save() waits for, and the planner that lets DCP write from it.

Only bytes are copied: each tensor's local part goes into a CPU buffer that is made once and used again (fresh memory is
ten times slower: its pages must be touched first). DCP's planner takes shapes and placements from the live tensors,
which do not change, and bytes from the buffers. DCP's own stagers are not used: those that all our torch
versions have either allocate anew at each save or cannot follow an optimizer whose state appears after the first one.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.tree import Flat, Paths

_IMMUTABLE = (int, float, bool, str, bytes, complex, type(None))


@dataclass(frozen=True)
class Snapshot:
    """The state at one step. `shapes` is only ever asked for shapes; what is written comes from `data`."""

    shapes: Flat
    data: Flat  # flat key -> CPU tensor, immutable value, or the value's torch.save bytes (BytesIO)
    paths: Paths


class Stager:
    """Owns the buffers. One snapshot at a time: taking the next one overwrites the last."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, flat: Flat, paths: Paths) -> Snapshot:
        """Copy everything. After it returns, training may change every tensor and object in `flat`."""
        shapes: Flat = {}
        data: Flat = {}
        asynchronous = False
        for key, value in flat.items():
            if isinstance(value, torch.Tensor):
                local = value.to_local() if isinstance(value, DTensor) else value.detach()
                buffer = self._buffer(key, local)
                buffer.copy_(local, non_blocking=local.is_cuda)
                asynchronous |= local.is_cuda
                data[key] = buffer
                shapes[key] = value if isinstance(value, DTensor) else buffer
            else:
                data[key] = value if type(value) in _IMMUTABLE else _pickled(value)
                shapes[key] = None
        for key in self._buffers.keys() - data.keys():
            del self._buffers[key]
        if asynchronous:
            torch.cuda.current_stream().synchronize()
        return Snapshot(shapes, data, paths)

    def _buffer(self, key: str, local: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=local.is_cuda)
            self._buffers[key] = buffer
        return buffer


class SnapshotPlanner(DefaultSavePlanner):
    """DCP's planner, with our flattening and our copies."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(flatten_state_dict=True, flatten_sharded_tensors=False)
        self._snapshot = snapshot

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.state_dict = self._snapshot.shapes
        self.mappings = self._snapshot.paths
        self.is_coordinator = is_coordinator

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._snapshot.data[index.fqn]

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type == WriteItemType.BYTE_IO and not isinstance(object, io.BytesIO):
            return _pickled(object)
        return object


def _pickled(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream
