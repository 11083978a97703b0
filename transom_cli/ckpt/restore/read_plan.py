"""Which stored bytes go where in a restore, and which ranks read them.

Most restores ask for exactly the parts that were stored: no resharding, no other shape. Those are found by name. DCP
would plan each load again, for any number of ranks; for a state of 741 tensors that takes longer than to copy them. The
rest is left to DCP.

Values that all ranks share (step counters, buffers, plain values) lie in one rank's share. A share is checked as a
whole, so for a kilobyte of it each rank would bring and read all of it. Its own rank has read it already, so small
parts are fetched from that rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from transom_cli.ckpt.failures import one_line
from transom_cli.ckpt.names import rank_of_data
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.tree import PLAIN, Flat


class Whole(NamedTuple):
    """A stored tensor and the local `target`. start, length: its archive in the file."""

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
    """What is wanted from one data file."""

    tensors: list[Whole] = field(default_factory=list)
    objects: list[Object] = field(default_factory=list)


def plan(metadata: Metadata, targets: Flat) -> tuple[dict[str, Wanted], Flat]:
    """Return what is read as it is stored, by data file, and the targets that are left to DCP."""
    found: dict[str, Wanted] = {}
    rest: Flat = {}
    stored: Any = metadata.storage_data
    for key, target in targets.items():
        about = metadata.state_dict_metadata[key]
        if not isinstance(about, TensorStorageMetadata):
            at = stored[MetadataIndex(key)]
            found.setdefault(at.relative_path, Wanted()).objects.append(Object(key, at.offset, at.length))
            continue
        local = target.to_local() if isinstance(target, DTensor) else target
        chunk = _same(about, target)
        blocks = [(chunk, local)] if chunk is not None else _blocks(about, target, local.detach())
        if not blocks:
            rest[key] = target
        for chunk, part in blocks:
            index = MetadataIndex(key, chunk.offsets)
            at = stored[index]
            found.setdefault(at.relative_path, Wanted()).tensors.append(Whole(index, part, at.offset, at.length))
    return found, rest


def _blocks(
    about: TensorStorageMetadata, target: torch.Tensor, local: torch.Tensor
) -> list[tuple[ChunkStorageMetadata, torch.Tensor]]:
    """The stored parts that together are what this rank holds of `target`, each with its contiguous place in `local`.

    For the blocks of an incremental checkpoint, and for shards that are put together again. Empty if a part lies across
    the border of what this rank holds, or its place is not contiguous.
    """
    here = _local_box(target)
    if here is None or target.shape != about.size:
        return []
    sizes, origin = here
    found: list[tuple[ChunkStorageMetadata, torch.Tensor]] = []
    for chunk in about.chunks:
        at = [offset - start for offset, start in zip(chunk.offsets, origin, strict=True)]
        ends = [start + size for start, size in zip(at, chunk.sizes, strict=True)]
        if any(end <= 0 or start >= size for start, end, size in zip(at, ends, sizes, strict=True)):
            continue
        if any(start < 0 or end > size for start, end, size in zip(at, ends, sizes, strict=True)):
            return []
        view = local
        for dimension, (start, end) in enumerate(zip(at, ends, strict=True)):
            view = view.narrow(dimension, start, end - start)
        if not view.is_contiguous():
            return []
        found.append((chunk, view))
    return found if sum(view.numel() for _, view in found) == local.numel() else []


def _same(about: TensorStorageMetadata, target: torch.Tensor) -> ChunkStorageMetadata | None:
    """The stored part that is exactly what this rank holds of `target`."""
    if type(target) in PLAIN:
        only = about.chunks[0]
        return only if len(about.chunks) == 1 and only.sizes == target.shape == about.size else None
    here = _local_box(target) if target.shape == about.size else None
    if here is None:
        return None
    return next((c for c in about.chunks if (tuple(c.sizes), tuple(c.offsets)) == here), None)


def _local_box(target: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Sizes and offsets of this rank's part in the whole tensor; None if it is no box."""
    if type(target) in PLAIN:
        return tuple(target.shape), (0,) * target.ndim
    if not isinstance(target, DTensor) or target.device_mesh.get_coordinate() is None:
        return None
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    return (tuple(shape), tuple(offset)) if tuple(shape) == tuple(target.to_local().shape) else None


SMALL = 16 << 20  # bytes wanted from a share: up to this many are fetched from its rank

Part = tuple[str, int, int]  # name of the data file, offset, bytes
Parts = dict[Part, bytes]


def divide(wanted: dict[str, Wanted], ranks: Ranks) -> tuple[dict[str, Wanted], dict[str, Wanted]]:
    """Split into what this rank reads itself, and what it fetches from other ranks."""
    near: dict[str, Wanted] = {}
    far: dict[str, Wanted] = {}
    for name, some in wanted.items():
        owner = rank_of_data(name)
        others = owner is not None and owner != ranks.rank and owner < ranks.size
        (far if others and sum(length for *_, length in parts(name, some)) <= SMALL else near)[name] = some
    return near, far


def parts(name: str, wanted: Wanted) -> list[Part]:
    tensors = [(name, one.start, one.length) for one in wanted.tensors]
    return tensors + [(name, one.start, one.length) for one in wanted.objects]


def exchange(requested: Iterable[Part], ranks: Ranks, serve: Callable[[Part], bytes]) -> Parts:
    """Fetch parts from the ranks that wrote them; `serve` reads a part of this rank's share. A collective.

    Raises OSError, with the message of the rank that could not serve a part.
    """
    wanted = list(requested)
    everyones = {part for of_rank in ranks.gather(wanted) for part in of_rank}
    mine: Parts = {}
    trouble = ""
    try:
        mine = {part: serve(part) for part in sorted(everyones) if rank_of_data(part[0]) == ranks.rank}
    except Exception as error:  # the other ranks wait
        trouble = one_line(error)
    found: Parts = {}
    troubles: list[str] = []
    for served, why in ranks.gather((mine, trouble)):
        found |= served
        troubles.append(why)
    for part in wanted:
        if part not in found:
            raise OSError(f"{part[0]}: {troubles[rank_of_data(part[0]) or 0]}")
    return found
