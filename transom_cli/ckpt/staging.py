"""The copy that save() waits for: every tensor's bytes to their place in an arena, all at once.

One snapshot at a time: taking the next one overwrites the last, so the writer must be done with it.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.arena import PAGE, Arena
from transom_cli.ckpt.image import Layout, Place, Snapshot, aligned, lay_out, local_part, local_plan, signature
from transom_cli.ckpt.streaming import Copier, Piece, streaming
from transom_cli.ckpt.tree import Flat, Paths

_SLACK = 1.25  # objects may grow by a quarter, and tensors by a 32nd, before the arena must
_LEAST = 1 << 20  # bytes kept for objects
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # others may not have their values where data_ptr() says


class Stager:
    """Owns the arena and knows the layout. For one thread at a time."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._layout: Layout | None = None
        self._agreed = False
        self._engraved = False
        self._arena: Arena | None = None
        self._copier = Copier()

    def look(self, flat: Flat, paths: Paths) -> Layout:
        """The layout for this state: the one there is, or one with all that is new in it besides this rank's share."""
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
        """The ranks' shares did not add up: the next snapshot is of all that this rank has."""
        self._layout = None

    def settle(self, layout: Layout, wanted: frozenset[MetadataIndex]) -> None:
        """All ranks have agreed that of this layout's plan this one writes `wanted`: make the memory for that."""
        if layout.indices != wanted:
            layout = lay_out(layout.signature, layout.plan, wanted)
        self._take_up(layout, agreed=True)
        self._make_room(layout, 0)
        streaming()  # compiled by now

    @torch.no_grad()
    def take(self, flat: Flat, paths: Paths) -> Snapshot:
        """Copy everything. After it returns, training may change every tensor and object in `flat`."""
        layout = self.look(flat, paths)
        objects = [(index, _pickled(flat[index.fqn])) for index in layout.objects]
        arena = self._make_room(layout, sum(aligned(len(data)) for _, data in objects))
        arena.pin()  # here and not when it is made: another thread would open a context on the first GPU for it
        pieces: list[Piece] = []
        asynchronous = False
        for block in layout.blocks:
            source, size = local_part(flat[block.index.fqn]), block.envelope.nbytes
            if source.numel() * source.element_size() != size:
                raise ValueError(f"{block.index.fqn}: its part on this rank has not the size that was planned")
            if type(source) in _PLAIN and source.is_cpu and source.is_contiguous() and not _lazy(source):
                pieces.append((arena.address + block.payload, source.data_ptr(), size))
            elif size:
                view = arena.bytes[block.payload : block.payload + size].view(source.dtype).view(source.shape)
                view.copy_(source, non_blocking=source.is_cuda)
                asynchronous |= source.is_cuda
        self._copier.copy(pieces)
        places: list[Place] = []
        end = layout.size
        for index, data in objects:
            arena.write(end, data)
            places.append((index, end, len(data)))
            end = aligned(end + len(data))
        if asynchronous:
            torch.cuda.current_stream().synchronize()
        return Snapshot(layout, arena, tuple(places), end, self._agreed)

    def close(self) -> None:
        self._copier.close()
        self._drop_arena()

    def _drop_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _take_up(self, layout: Layout, *, agreed: bool) -> None:
        self._engraved &= layout is self._layout
        self._layout, self._agreed = layout, agreed

    def _make_room(self, layout: Layout, objects: int) -> Arena:
        """An arena that is large enough, and has what stands around each tensor in its place."""
        arena, need = self._arena, layout.size + objects
        if arena is None or not need <= arena.size <= 2 * need + 2 * PAGE:
            self._drop_arena()
            spare = max(_LEAST, layout.size // 32, int(_SLACK * objects))
            arena = self._arena = Arena(layout.size + spare)
            self._engraved = False
        if not self._engraved:
            for block in layout.blocks:
                around = block.envelope
                arena.write(block.start, around.head)
                arena.write(block.payload + around.nbytes, around.tail)
            self._engraved = True
        return arena


def _lazy(tensor: torch.Tensor) -> bool:
    """Whether its memory holds something else than its values."""
    return tensor.is_conj() or tensor.is_neg()


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
