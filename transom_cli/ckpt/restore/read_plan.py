"""Which stored bytes go where in a restore, and which ranks read them.

Each rank finds this for itself: DCP would plan each load for all ranks together, and for a state of 741 tensors that
takes longer than to copy them.

Values that all ranks share (step counters, buffers, plain values) lie in one rank's share. A share is checked as a
whole, so for a kilobyte of it each rank would bring and read all of it. Its own rank has read it already, so small
parts are fetched from that rank.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from transom_cli.ckpt.failures import StateMismatch, one_line
from transom_cli.ckpt.names import rank_of_data
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.tree import PLAIN, Flat, local_part

Box = tuple[tuple[int, int], ...]  # first element and length, in each dimension


class Piece(NamedTuple):
    """A stored part of a tensor, and the local `target` of it. start, length: its archive in the file. box: what is
    wanted of the part; None: all of it."""

    which: MetadataIndex
    target: torch.Tensor
    start: int
    length: int
    box: Box | None = None


class Object(NamedTuple):
    key: str
    start: int
    length: int


@dataclass
class Wanted:
    """What is wanted from one data file."""

    tensors: list[Piece] = field(default_factory=list)
    objects: list[Object] = field(default_factory=list)


def plan(metadata: Metadata, targets: Flat) -> dict[str, Wanted]:
    """Return what is read of each data file.

    Raises:
        StateMismatch: the stored parts of a tensor are not all of what this rank holds of it.
    """
    found: dict[str, Wanted] = {}
    stored: Any = metadata.storage_data
    for key, target in targets.items():
        about = metadata.state_dict_metadata[key]
        if not isinstance(about, TensorStorageMetadata):
            at = stored[MetadataIndex(key)]
            found.setdefault(at.relative_path, Wanted()).objects.append(Object(key, at.offset, at.length))
            continue
        for chunk, part, box in pieces(key, about, target):
            index = MetadataIndex(key, chunk.offsets)
            at = stored[index]
            piece = Piece(index, part, at.offset, at.length, box)
            found.setdefault(at.relative_path, Wanted()).tensors.append(piece)
    return found


def pieces(
    key: str, about: TensorStorageMetadata, target: torch.Tensor
) -> list[tuple[ChunkStorageMetadata, torch.Tensor, Box | None]]:
    """Return the stored parts that this rank needs, each with its place in the local part of `target`.

    Nearly always it is one part, and all of it: no resharding. Raises StateMismatch.
    """
    local, (sizes, origin) = local_part(target).detach(), _local_box(key, target)
    same = next((c for c in about.chunks if (tuple(c.sizes), tuple(c.offsets)) == (sizes, origin)), None)
    if same is not None:
        return [(same, local, None)]
    found: list[tuple[ChunkStorageMetadata, torch.Tensor, Box | None]] = []
    for chunk in about.chunks:
        lows = [max(first, start) for first, start in zip(chunk.offsets, origin, strict=True)]
        ends = [min(a + m, b + n) for a, m, b, n in zip(chunk.offsets, chunk.sizes, origin, sizes, strict=True)]
        if any(low >= end for low, end in zip(lows, ends, strict=True)):
            continue
        view, box = local, []
        for dimension, (low, end) in enumerate(zip(lows, ends, strict=True)):
            view = view.narrow(dimension, low - origin[dimension], end - low)
            box.append((low - chunk.offsets[dimension], end - low))
        whole = view.shape == chunk.sizes
        found.append((chunk, view, None if whole else tuple(box)))
    if sum(view.numel() for _, view, _ in found) != local.numel():
        raise StateMismatch(f"the stored parts of {key} do not add up to what this rank holds of it")
    return found


def _local_box(key: str, target: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and offsets of this rank's part in the whole tensor."""
    if type(target) in PLAIN or not isinstance(target, DTensor):
        return tuple(target.shape), (0,) * target.ndim
    local = tuple(target.to_local().shape)
    if target.device_mesh.get_coordinate() is None:
        return local, (0,) * target.ndim
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    if tuple(shape) != local:
        raise StateMismatch(f"the part of {key} is {list(local)} here, and its placements say {list(shape)}")
    return tuple(shape), tuple(offset)


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
