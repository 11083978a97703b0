"""The copy that save() waits for: every tensor's bytes to their place in an arena, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.save.arena import Arena
from transom_cli.ckpt.save.image import Layout, Place, Snapshot, aligned, lay_out, local_plan, signature
from transom_cli.ckpt.save.overlap import Copying, Later, Source, pieces
from transom_cli.ckpt.save.pickles import Pickles
from transom_cli.ckpt.save.streaming import WORTH, Copier, streaming
from transom_cli.ckpt.tree import PLAIN, Flat, Paths, local_part

_SLACK = 1.25  # objects may grow by a quarter, and tensors by a 32nd, before the arena must
_LEAST = 1 << 20  # bytes kept for objects
NOTHING = Later()


Provide = Callable[[int, int], Arena]


class Stager:
    """Knows the layout. For one thread at a time. `provide`: memory of so many bytes at least, made with so many."""

    def __init__(self, provide: Provide, pickles: Pickles | None = None, *, first: bool) -> None:
        self._provide = provide
        self._first = first
        self._layout: Layout | None = None
        self._agreed = False
        self._copier = Copier()
        self._pickles = pickles or Pickles()
        self._copying: Copying | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="transom-later")  # its thread comes with the first use
        self._side: torch.cuda.Stream | None = None

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

    def agreed_on(self, layout: Layout) -> bool:
        return self._agreed and layout is self._layout

    def settle(self, layout: Layout, wanted: frozenset[MetadataIndex], growth: float = 1.0) -> None:
        """All ranks have agreed that of this layout's plan this one writes `wanted`: make the memory for that, and for
        the `growth` that is soon to come."""
        if layout.indices != wanted:
            layout = lay_out(layout.signature, layout.plan, wanted)
        self._take_up(layout, agreed=True)
        compiling = self.warm() if layout.size >= WORTH else None  # beside the touching of memory, which takes longer
        self._make_room(layout, 0, growth)
        if compiling is not None:
            compiling.join()

    def warm(self) -> threading.Thread:
        """Make the copy of large pieces ready, in the background."""
        compiling = threading.Thread(target=streaming, name="transom-compile", daemon=True)
        compiling.start()
        return compiling

    @torch.no_grad()
    def take(self, flat: Flat, paths: Paths, later: Later = NOTHING) -> Snapshot:
        """Copy everything, but start only to copy what may be copied `later`: what is left of that, `join` waits for.

        After it returns, training may change every other tensor and object in `flat`.
        """
        self.join()
        layout = self.look(flat, paths)
        objects = [(index, self._pickles.of(index.fqn, flat[index.fqn])) for index in layout.objects]
        arena = self._make_room(layout, sum(aligned(len(data)) for _, data in objects))
        arena.pin()  # here and not when it is made: another thread would open a context on the first GPU for it
        now: list[Source] = []
        waits: list[Source] = []
        for block in layout.blocks:
            name, at, size = block.index.fqn, block.payload, block.envelope.nbytes
            value = flat[name]
            local = local_part(value)
            if local.nbytes != size:
                raise ValueError(f"{name}: its part on this rank has not the size that was planned")
            if size:
                allowed = later.allows(local) and (local.is_cuda or _plain(local))
                source = Source(name, value, local, at, arena.address + at, size)
                (waits if allowed else now).append(source)
        copying = Copying(waits, prove=later.prove) if waits else None
        self._copy(arena, now)
        places: list[Place] = []
        end = layout.size
        for index, data in objects:
            arena.write(end, data)
            places.append((index, end, len(data)))
            end = aligned(end + len(data))
        if copying is not None:
            self._begin(arena, waits, copying)
        self._copying = copying
        return Snapshot(layout, arena, tuple(places), end, self._agreed, copying)

    @property
    def copying(self) -> bool:
        """Whether a copy may still be under way."""
        return self._copying is not None and not self._copying.over

    def join(self) -> None:
        """Wait for what is left of the last copy."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _copy(self, arena: Arena, sources: list[Source]) -> None:
        mine = [source for source in sources if _plain(source.local)]
        others = [source for source in sources if not _plain(source.local)]
        on_gpu = _copy_by_torch(arena, others)
        self._copier.copy(pieces(mine))
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    def _begin(self, arena: Arena, sources: list[Source], copying: Copying) -> None:
        mine = [source for source in sources if not source.local.is_cuda]
        others = [source for source in sources if source.local.is_cuda]
        event = None
        if others:  # on a GPU; not exercised on hardware
            self._side = self._side or torch.cuda.Stream()
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                _copy_by_torch(arena, others)
                event = self._side.record_event()
        copying.begin(self._beside.submit(self._copier.copy, pieces(mine)), event)

    def close(self) -> None:
        self.join()
        self._beside.shutdown()
        self._copier.close()

    def _take_up(self, layout: Layout, *, agreed: bool) -> None:
        self._layout, self._agreed = layout, agreed

    def _make_room(self, layout: Layout, objects: int, growth: float = 1.0) -> Arena:
        """An arena that is large enough, and has what stands around each tensor in its place."""
        arena = self._provide(layout.size + objects, int(growth * size_for(layout, objects)))
        if arena.about is not layout:
            for block in layout.blocks:
                around = block.envelope
                arena.write(block.start, around.head)
                arena.write(block.payload + around.nbytes, around.tail)
            arena.about = layout
        return arena


def size_for(layout: Layout, objects: int = 0) -> int:
    """Bytes to be made for a snapshot: with room to grow."""
    return layout.size + max(_LEAST, layout.size // 32, int(_SLACK * objects))


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its values are in this process's memory one after the other, as they are."""
    return (
        type(tensor) in PLAIN  # others may not have their values where data_ptr() says
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _copy_by_torch(arena: Arena, sources: list[Source]) -> bool:
    """Returns whether some of it may still be under way on the present stream."""
    on_gpu = False
    for source in sources:
        local = source.local
        view = arena.bytes[source.at : source.at + source.size].view(local.dtype).view(local.shape)
        view.copy_(local, non_blocking=local.is_cuda)
        on_gpu |= local.is_cuda
    return on_gpu
