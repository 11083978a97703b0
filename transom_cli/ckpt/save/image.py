"""Where each part of a rank's state stands in its snapshot, which has the very bytes of the rank's data file.

A *layout* is made once for a state that keeps its names, shapes and types: a row of blocks, each a tensor's bytes
within what torch.save puts around them, each begun on a cache line. Objects follow, whose lengths may change from save
to save. What is in memory can so be written, or sent, as it stands.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.save.arena import Arena
from transom_cli.ckpt.save.envelope import ALIGNMENT, Envelope, envelope
from transom_cli.ckpt.save.overlap import Copying
from transom_cli.ckpt.tree import PLAIN, Flat, Paths

Signature: TypeAlias = tuple[tuple[Any, ...], ...]
Place: TypeAlias = tuple[MetadataIndex, int, int]  # what, where it begins, bytes


@dataclass(frozen=True)
class Block:
    """One tensor's stored form: `envelope.length` bytes from `start`."""

    index: MetadataIndex
    start: int
    envelope: Envelope

    @functools.cached_property
    def payload(self) -> int:
        return self.start + len(self.envelope.head)


@dataclass(frozen=True)
class Layout:
    """`plan`: DCP's local plan, all that this rank could write; `blocks` and `objects`: what it does write."""

    signature: Signature
    plan: SavePlan
    blocks: tuple[Block, ...]
    objects: tuple[MetadataIndex, ...]
    size: int  # bytes of the blocks

    @property
    def indices(self) -> frozenset[MetadataIndex]:
        return frozenset([*(block.index for block in self.blocks), *self.objects])


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of the state at one step: `size` bytes of `arena`."""

    layout: Layout
    arena: Arena
    objects: tuple[Place, ...]
    size: int
    agreed: bool  # whether all ranks have shared out what they write since the state last changed its shape
    copying: Copying | None = None  # until it is settled, not all is there


def signature(flat: Flat, paths: Paths) -> Signature:
    """Equal for two states that have the same layout."""
    return tuple((key, paths[key], *_kind(value)) for key, value in flat.items())


def _kind(value: Any) -> tuple[Any, ...]:
    if type(value) in PLAIN:
        return (value.shape, value.dtype)
    if isinstance(value, DTensor):
        return (value.shape, value.dtype, value.to_local().shape, value.placements, value.device_mesh)
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else ()


def local_plan(flat: Flat, paths: Paths, *, first: bool) -> SavePlan:
    """What this rank has, as DCP plans it. A plain value needs no more than its name here."""
    shapes = {
        key: (value if isinstance(value, DTensor) else value.detach()) if isinstance(value, torch.Tensor) else None
        for key, value in flat.items()
    }
    plan = create_default_local_save_plan(shapes, first)
    return SavePlan(plan.items, plan.storage_data, paths)


def lay_out(about: Signature, plan: SavePlan, wanted: frozenset[MetadataIndex] | None) -> Layout:
    """`wanted`: what of the plan this rank is to write; None: all of it."""
    blocks: list[Block] = []
    objects: list[MetadataIndex] = []
    end = 0
    for item in plan.items:
        if wanted is not None and item.index not in wanted:
            continue
        if item.tensor_data is None:
            objects.append(item.index)
            continue
        around = envelope(item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype)
        blocks.append(Block(item.index, aligned(end), around))
        end = blocks[-1].start + around.length
    return Layout(about, plan, tuple(blocks), tuple(objects), aligned(end))


def pack(snapshot: Snapshot, wanted: Iterable[MetadataIndex] | None) -> tuple[list[tuple[int, int]], list[Place]]:
    """What of the snapshot goes into the file, as (start, bytes) in the arena, and where each part is in the file."""
    chosen = None if wanted is None else frozenset(wanted)
    found = [(block.index, block.start, block.envelope.length) for block in snapshot.layout.blocks]
    segments: list[tuple[int, int]] = []
    places: list[Place] = []
    end = 0
    for index, start, length in (*found, *snapshot.objects):
        if chosen is not None and index not in chosen:
            continue
        places.append((index, end, length))
        if segments and sum(segments[-1]) == start:
            segments[-1] = (segments[-1][0], segments[-1][1] + aligned(length))
        else:
            segments.append((start, aligned(length)))
        end += aligned(length)
    return segments, places


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
