"""Where each part of a rank's state lies in its snapshot, which has the very bytes of the rank's data file.

A DCP (torch.distributed.checkpoint) data file is a sequence of `torch.save`d tensors. Each is an uncompressed zip
archive that contains the tensor's bytes as they are. The bytes around them, the *envelope*, depend only on shape and
type: torch makes them once, and after that a save only puts the tensor's bytes in between.

A *layout* is made once for a state that keeps its names, shapes and types: a sequence of blocks, each a tensor in its
envelope, aligned to a cache line. Objects follow, whose lengths may change from save to save. So memory can be written
or sent as it is, and stock torch reads the file.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeAlias, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.tree import PLAIN, Flat, Paths, local_part

_PIECE = 8 << 20  # bytes
Signature: TypeAlias = tuple[tuple[Any, ...], ...]
Place: TypeAlias = tuple[MetadataIndex, int, int]  # what, where it begins, bytes


@dataclass(frozen=True)
class Block:
    """A tensor as stored: `envelope.length` bytes from `start`."""

    index: MetadataIndex
    start: int
    envelope: Envelope

    @functools.cached_property
    def payload(self) -> int:
        return self.start + len(self.envelope.head)


@dataclass(frozen=True)
class Layout:
    """plan: DCP's local plan, all that this rank could write. blocks and objects: what it writes."""

    signature: Signature
    plan: SavePlan
    blocks: tuple[Block, ...]
    objects: tuple[MetadataIndex, ...]
    size: int  # bytes of the blocks

    @property
    def indices(self) -> frozenset[MetadataIndex]:
        return frozenset([*(block.index for block in self.blocks), *self.objects])


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
    """DCP's plan of what this rank has. For a plain value only the name matters."""
    shapes = {
        key: (value if isinstance(value, DTensor) else value.detach()) if isinstance(value, torch.Tensor) else None
        for key, value in flat.items()
    }
    plan = create_default_local_save_plan(shapes, first)
    return SavePlan(plan.items, plan.storage_data, paths)


def global_plan(plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
    """Return DCP's plan: which rank writes what, with each replica stored once."""
    return DefaultSavePlanner(flatten_state_dict=True, flatten_sharded_tensors=False).create_global_plan(plans)


def lay_out(about: Signature, plan: SavePlan, wanted: frozenset[MetadataIndex] | None) -> Layout:
    """Lay out what this rank writes: `wanted`, or all of the plan."""
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


def places_of(layout: Layout, objects: list[tuple[MetadataIndex, bytes]]) -> list[Place]:
    """Where each part is in the data file of all that the layout has."""
    places = [(block.index, block.start, block.envelope.length) for block in layout.blocks]
    end = layout.size
    for index, data in objects:
        places.append((index, end, len(data)))
        end += aligned(len(data))
    return places


def data_file(layout: Layout, flat: Flat, objects: list[bytes]) -> Iterator[memoryview | bytes]:
    """The bytes of a rank's data file, in order: as a snapshot has them. objects: archives of plain values."""
    end = 0
    for block in layout.blocks:
        yield bytes(block.start - end)
        yield block.envelope.head
        local = local_part(flat[block.index.fqn]).detach()
        if local.nbytes != block.envelope.nbytes:
            raise ValueError(f"{block.index.fqn}: its part on this rank does not have the planned size")
        if local.nbytes:
            host = local if type(local) in PLAIN and local.is_cpu else local.cpu()
            host = host.resolve_conj().resolve_neg().contiguous()
            memory = memoryview((ctypes.c_char * host.nbytes).from_address(host.data_ptr())).cast("B")
            for at in range(0, host.nbytes, _PIECE):
                yield memory[at : at + _PIECE]
        yield block.envelope.tail
        end = block.start + block.envelope.length
    yield bytes(layout.size - end)
    for data in objects:
        yield data + bytes(aligned(len(data)) - len(data))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


ALIGNMENT = 64  # bytes: torch.save aligns a tensor's bytes to this, counted from the start of the archive


@dataclass(frozen=True)
class Envelope:
    """What torch.load reads: `head`, the tensor's `nbytes` contiguous bytes, `tail`."""

    head: bytes
    nbytes: int
    tail: bytes

    @property
    def length(self) -> int:
        return len(self.head) + self.nbytes + len(self.tail)


@functools.lru_cache(maxsize=4096)
def envelope(shape: torch.Size, dtype: torch.dtype) -> Envelope:
    """The envelope of a contiguous CPU tensor. Raises RuntimeError if this torch uses another file layout."""
    tensor = torch.empty(shape, dtype=dtype)  # its memory is never touched
    size = tensor.numel() * tensor.element_size()
    sparse = _Sparse()
    with torch.serialization.skip_data():
        torch.save(tensor, cast(IO[bytes], sparse))
    head, tail = sparse.around(size)
    if len(head) % ALIGNMENT and size:
        raise RuntimeError(f"torch {torch.__version__} does not align what torch.save writes to {ALIGNMENT} bytes")
    return Envelope(head, size, tail)


class _Sparse:
    """A file that keeps what is written and omits what is skipped."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._at = 0

    def write(self, data: bytes) -> int:
        self._pieces[self._at] = bytes(data)
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing is buffered."""

    def around(self, size: int) -> tuple[bytes, bytes]:
        """The bytes before and after the one hole of `size` bytes."""
        parts, end, hole = [bytearray(), bytearray()], 0, 0
        for start, data in sorted(self._pieces.items()):
            if start != end and (start - end != size or hole):
                raise RuntimeError(f"torch {torch.__version__} left a hole of {start - end} bytes, not of {size}")
            hole += start != end
            parts[hole] += data
            end = start + len(data)
        if size and not hole:
            raise RuntimeError(f"torch {torch.__version__} did not skip the tensor's bytes")
        return bytes(parts[0]), bytes(parts[1])
