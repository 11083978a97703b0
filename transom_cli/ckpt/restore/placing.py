"""Which stored bytes go where in a restore, for what comes back as it was saved: no resharding, no other shape.

DCP plans each load anew, for any number of ranks; for a state of 741 tensors that takes longer than to copy them. Most
restores ask for the very parts that were stored, and those are found by their names. The rest is left to DCP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from transom_cli.ckpt.tree import PLAIN, Flat


class Whole(NamedTuple):
    """A stored tensor, and the local one that it is to become: `start` and `length` of its archive in the file."""

    which: MetadataIndex
    target: torch.Tensor
    start: int
    length: int


class Object(NamedTuple):
    key: str
    start: int
    length: int


@dataclass
class Wanted:
    """Of one data file."""

    tensors: list[Whole] = field(default_factory=list)
    objects: list[Object] = field(default_factory=list)


def plan(metadata: Metadata, targets: Flat) -> tuple[dict[str, Wanted], Flat]:
    """By data file what is read as it stands, and the targets that are left to DCP."""
    found: dict[str, Wanted] = {}
    rest: Flat = {}
    stored: Any = metadata.storage_data
    for key, target in targets.items():
        about = metadata.state_dict_metadata[key]
        if not isinstance(about, TensorStorageMetadata):
            at = stored[MetadataIndex(key)]
            found.setdefault(at.relative_path, Wanted()).objects.append(Object(key, at.offset, at.length))
            continue
        chunk = _same(about, target)
        if chunk is None:
            rest[key] = target
            continue
        index = MetadataIndex(key, chunk.offsets)
        at = stored[index]
        local = target.to_local() if isinstance(target, DTensor) else target
        found.setdefault(at.relative_path, Wanted()).tensors.append(Whole(index, local, at.offset, at.length))
    return found, rest


def _same(about: TensorStorageMetadata, target: torch.Tensor) -> ChunkStorageMetadata | None:
    """The one stored part that is just what this rank holds of `target`."""
    if type(target) in PLAIN:
        only = about.chunks[0]
        return only if len(about.chunks) == 1 and only.sizes == target.shape == about.size else None
    if not isinstance(target, DTensor) or target.device_mesh.get_coordinate() is None or target.shape != about.size:
        return None
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    if tuple(shape) != tuple(target.to_local().shape):
        return None
    return next((c for c in about.chunks if tuple(c.offsets) == offset and tuple(c.sizes) == tuple(shape)), None)
