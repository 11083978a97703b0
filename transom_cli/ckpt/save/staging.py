"""Copy the state into a snapshot's memory: all at once, or partly while training continues.

With an overlapped copy, parameters and optimizer state are copied during the next forward and backward pass. They do
not change between two optimizer steps (the lazy window of DataStates-LLM, HPDC 2024), and a hook makes the next step of
every optimizer wait for the rest. Everything else in the state (buffers, random numbers, a scheduler's tensors) is
copied before save() returns.

A program may break that rule: it clips weights, or swaps in averaged ones to evaluate. torch counts the writes to each
tensor, so the copy fails and names a tensor that was written to before it ended. Writes through `.data` and by kernels
of other libraries are not counted: samples find those that change most of a tensor (`save.device_copy`). `prove` finds
all, by checksums before and after, which takes longer than a blocking save.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import xxhash
from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.save import device_copy
from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.save.device_copy import Ends, Samples, SideStreams, Source
from transom_cli.ckpt.save.fast_copy import Copier, Piece
from transom_cli.ckpt.save.layout import Layout, Place, aligned, lay_out, local_plan, signature
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.ckpt.tree import Flat, Paths, is_plain, local_part

_SLACK = 1.25  # objects may grow by a quarter, and tensors by 1/32, before a larger buffer is needed
_LEAST = 1 << 20  # bytes kept for objects
_AFTER = 5.0  # seconds to wait for an optimizer step after a copy: torch counts a write when it ends


class Torn(RuntimeError):
    """The state changed while it was copied."""


@dataclass(frozen=True)
class Later:
    """What may be copied later: tensors in these storages, by address. prove: verify that with checksums."""

    storages: frozenset[int] = frozenset()
    prove: bool = False

    def allows(self, local: torch.Tensor) -> bool:
        return bool(self.storages) and local.untyped_storage().data_ptr() in self.storages


class Copying:
    """An overlapped copy. `run` copies from CPU memory; `ends` are those of the GPUs' own copies.

    Made before the copy begins. Whether the copy is consistent is decided once: by `join`, otherwise by `settle`.
    """

    def __init__(self, sources: Sequence[Source], *, prove: bool) -> None:
        self._sources = list(sources)
        self._versions = [source.tensor._version for source in sources]
        self._samples = Samples(sources)
        self._before = [_digest_of(source.tensor) for source in sources] if prove else []
        self._run: Future[None] | None = None
        self._ends = Ends()
        self._decision = threading.Lock()
        self._decided = threading.Event()
        self._changed: list[str] = []

    def begin(self, run: Future[None], ends: Ends = Ends()) -> None:
        self._run, self._ends = run, ends

    @property
    def over(self) -> bool:
        return self._decided.is_set()

    def join(self) -> None:
        """Wait in the training thread, where nothing writes meanwhile. Afterwards everything may change."""
        if self._run is not None:
            self._run.exception()
        self._ends.hold_devices()
        self._decide()

    def settle(self) -> None:
        """Wait until the copy is known to be consistent. Raises Torn, or the error of the copy."""
        if self._run is not None:
            self._run.result()
        self._ends.wait()
        if not self._decided.wait(_AFTER):
            self._decide()
        self._changed += [name for name in self._samples.differences() if name not in self._changed]
        for source, before in zip(self._sources, self._before, strict=False):
            if source.name not in self._changed and _digest(source.to, source.size) != before:
                self._changed.append(source.name)
        self._sources = []
        if self._changed:
            more = f" and {len(self._changed) - 1} more" if len(self._changed) > 1 else ""
            raise Torn(f'{self._changed[0]}{more} changed outside an optimizer\'s step; use copy="blocking"')

    def _decide(self) -> None:
        with self._decision:
            if not self._decided.is_set():
                seen = zip(self._sources, self._versions, strict=True)
                self._changed = [source.name for source, version in seen if source.tensor._version != version]
                self._changed += [name for name in self._samples.take_again() if name not in self._changed]
                self._decided.set()


def pieces(sources: Sequence[Source]) -> list[Piece]:
    """The pieces to copy, for contiguous tensors in this process's memory."""
    return [(source.to, source.local.data_ptr(), source.size) for source in sources]


def _digest_of(tensor: torch.Tensor) -> int:
    local = local_part(tensor).detach().cpu().contiguous()
    return _digest(local.data_ptr(), local.numel() * local.element_size())


def _digest(address: int, size: int) -> int:
    return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(address)) if size else 0


NOTHING = Later()


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
    copying: Copying | None = None  # the snapshot is incomplete until it is settled


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
        self._copying: Copying | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="transom-later")
        self._side = SideStreams()

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
    def take(self, flat: Flat, paths: Paths, later: Later = NOTHING) -> Snapshot:
        """Copy everything, except what may be copied `later`: that copy is started, and `join` waits for it.

        Training may then change every other tensor and object in `flat`.
        """
        self.join()
        layout = self.look(flat, paths)
        objects = [(index, self._serializer.serialize(index.fqn, flat[index.fqn])) for index in layout.objects]
        buffer = self._make_room(layout, sum(aligned(len(data)) for _, data in objects))
        buffer.pin()  # not when it is allocated: another thread would open a context on the first GPU
        now: list[Source] = []
        waits: list[Source] = []
        for block in layout.blocks:
            name, at, size = block.index.fqn, block.payload, block.envelope.nbytes
            value = flat[name]
            local = local_part(value)
            if local.nbytes != size:
                raise ValueError(f"{name}: its part on this rank does not have the planned size")
            if size:
                allowed = later.allows(local) and (local.is_cuda or is_plain(local))
                source = Source(name, value, local, at, buffer.address + at, size)
                (waits if allowed else now).append(source)
        copying = Copying(waits, prove=later.prove) if waits else None
        self._copy(buffer, now)
        places: list[Place] = []
        end = layout.size
        for index, data in objects:
            buffer.write(end, data)
            places.append((index, end, len(data)))
            end = aligned(end + len(data))
        if copying is not None:
            self._begin(buffer, waits, copying)
        self._copying = copying
        return Snapshot(layout, buffer, tuple(places), end, self._agreed, copying)

    @property
    def copying(self) -> bool:
        """Whether an overlapped copy may still be running."""
        return self._copying is not None and not self._copying.over

    def join(self) -> None:
        """Wait for the rest of the last copy."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _copy(self, buffer: Buffer, sources: list[Source]) -> None:
        mine = [source for source in sources if is_plain(source.local)]
        others = [source for source in sources if not is_plain(source.local)]
        ends = device_copy.copy(buffer, others)
        self._copier.copy(pieces(mine))
        ends.wait()

    def _begin(self, buffer: Buffer, sources: list[Source], copying: Copying) -> None:
        mine = [source for source in sources if not source.local.is_cuda]
        others = [source for source in sources if source.local.is_cuda]
        ends = self._side.copy(buffer, others)
        copying.begin(self._beside.submit(self._copier.copy, pieces(mine)), ends)

    def close(self) -> None:
        self.join()
        self._beside.shutdown()
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
