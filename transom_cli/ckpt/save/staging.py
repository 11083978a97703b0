"""Copy the state into a snapshot's memory: GPUs by torch, this process's memory by several threads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.save.fast_copy import Copier
from transom_cli.ckpt.save.layout import Layout, Place, aligned, lay_out, local_plan, signature
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.ckpt.tree import Flat, Paths, is_plain, local_part

_SLACK = 1.25  # objects may grow by a quarter, and tensors by 1/32, before a larger buffer is needed
_LEAST = 1 << 20  # bytes kept for objects


class Source(NamedTuple):
    """This rank's part of a tensor: `size` bytes that go to offset `at` of the buffer."""

    local: torch.Tensor
    at: int
    size: int


Provide = Callable[[int, int], Buffer]
"""Returns memory of at least the first number of bytes, allocated with the second if it is new."""


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of the state at one step: `size` bytes of `buffer`."""

    layout: Layout
    buffer: Buffer
    objects: tuple[Place, ...]
    size: int
    agreed: bool  # all ranks have agreed who writes what since the state last changed shape


def pack(snapshot: Snapshot, wanted: Iterable[MetadataIndex] | None) -> tuple[list[tuple[int, int]], list[Place]]:
    """Return the segments of the buffer that go into the file, as (start, bytes), and each part's place in the file."""
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


class Stager:
    """Makes snapshots, and keeps their layout. For one thread at a time."""

    def __init__(self, provide: Provide, serializer: Serializer | None = None, *, first: bool) -> None:
        self._provide = provide
        self._first = first
        self._layout: Layout | None = None
        self._agreed = False
        self._copier = Copier()
        self._serializer = serializer or Serializer()

    def look(self, flat: Flat, paths: Paths) -> Layout:
        """The layout for this state: the current one, or a new one with this rank's share and all new values."""
        about = signature(flat, paths)
        if self._layout is None or self._layout.signature != about:
            plan = local_plan(flat, paths, first=self._first)
            wanted = None
            if self._layout is not None:
                same = {entry[0] for entry in set(self._layout.signature).intersection(about)}
                had = self._layout.indices
                wanted = frozenset(i.index for i in plan.items if i.index.fqn not in same or i.index in had)
            self._take_up(lay_out(about, plan, wanted), agreed=False)
        assert self._layout is not None
        return self._layout

    def forget(self) -> None:
        """The ranks' shares did not add up: let the next snapshot hold everything that this rank has."""
        self._layout = None

    def agreed_on(self, layout: Layout) -> bool:
        return self._agreed and layout is self._layout

    def settle(self, layout: Layout, wanted: frozenset[MetadataIndex], growth: float = 1.0) -> None:
        """All ranks have agreed that this rank writes `wanted` of the layout's plan: allocate memory for that.

        Args:
            growth: factor by which the state will soon grow.
        """
        if layout.indices != wanted:
            layout = lay_out(layout.signature, layout.plan, wanted)
        self._take_up(layout, agreed=True)
        self._make_room(layout, 0, growth)

    @torch.no_grad()
    def take(self, flat: Flat, paths: Paths) -> Snapshot:
        """Copy everything. Training may then change every tensor and object in `flat`."""
        layout = self.look(flat, paths)
        objects = [(index, self._serializer.serialize(index.fqn, flat[index.fqn])) for index in layout.objects]
        buffer = self._make_room(layout, sum(aligned(len(data)) for _, data in objects))
        buffer.pin()  # not when it is allocated: another thread would open a context on the first GPU
        sources: list[Source] = []
        for block in layout.blocks:
            local, size = local_part(flat[block.index.fqn]), block.envelope.nbytes
            if local.nbytes != size:
                raise ValueError(f"{block.index.fqn}: its part on this rank does not have the planned size")
            if size:
                sources.append(Source(local, block.payload, size))
        self._copy(buffer, sources)
        places: list[Place] = []
        end = layout.size
        for index, data in objects:
            buffer.write(end, data)
            places.append((index, end, len(data)))
            end = aligned(end + len(data))
        return Snapshot(layout, buffer, tuple(places), end, self._agreed)

    def _copy(self, buffer: Buffer, sources: list[Source]) -> None:
        """torch queues a copy from a GPU on the current stream of the device that it copies from, whichever device is
        current. So one event for each of these devices marks the end. Not exercised on hardware."""
        devices: dict[torch.device, None] = {}
        for local, at, size in (source for source in sources if not is_plain(source.local)):
            view = buffer.bytes[at : at + size].view(local.dtype).view(local.shape)
            view.copy_(local, non_blocking=local.is_cuda)
            if local.is_cuda:
                devices[local.device] = None
        ends: list[Any] = [torch.cuda.current_stream(device).record_event() for device in devices]
        mine = [source for source in sources if is_plain(source.local)]
        self._copier.copy([(buffer.address + at, local.data_ptr(), size) for local, at, size in mine])
        for end in ends:
            end.synchronize()

    def close(self) -> None:
        self._copier.close()

    def _take_up(self, layout: Layout, *, agreed: bool) -> None:
        self._layout, self._agreed = layout, agreed

    def _make_room(self, layout: Layout, objects: int, growth: float = 1.0) -> Buffer:
        """A buffer that is large enough, with the bytes around each tensor written."""
        buffer = self._provide(layout.size + objects, int(growth * size_for(layout, objects)))
        if buffer.about is not layout:
            for block in layout.blocks:
                around = block.envelope
                buffer.write(block.start, around.head)
                buffer.write(block.payload + around.nbytes, around.tail)
            buffer.about = layout
        return buffer


def size_for(layout: Layout, objects: int = 0) -> int:
    """Bytes to allocate for a snapshot, with room to grow."""
    return layout.size + max(_LEAST, layout.size // 32, int(_SLACK * objects))
