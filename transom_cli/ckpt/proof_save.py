"""The proof of a save: computed in the background from the bytes that are stored, and checked against the live state.

Digests of stored bytes alone would certify whatever lies in the buffer, also a shard of an earlier step. So each save
samples the live state in the training thread: up to `SAMPLED` parts of tensors, other ones in each save, a few cache
lines of each. The same places of the stored bytes must be equal, on every rank, also where a rank holds a replica that
another rank stores. If one differs, the save fails and names the tensor. A rank that writes its live state straight to
disk (`save.streamed`) computes the digests of that state while it does so.

All ranks call the methods of a `Ledger` in the same order. What they exchange is one table of numbers, added up by a
single collective whose size depends on the number of names, not of ranks.
"""

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem

from transom_cli.ckpt.digest import Part, digests
from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.proof import NAMED, Proof, TensorProof, digest_of, storage_of, ties_of
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.save.layout import Layout, Place
from transom_cli.ckpt.save.staging import Snapshot
from transom_cli.ckpt.state import RANKS
from transom_cli.ckpt.tree import PLAIN, Flat, local_part
from transom_cli.plural import some

SAMPLED = 256  # parts of tensors whose live bytes are sampled in one save
ON_DEVICE = 64  # the same on a GPU, where each costs several kernels
_LINE = 64  # bytes
_LINES = 4  # of a part
_DIGEST, _COUNT, _STORED, _STORED_PARTS, _LIVE, _LIVE_PARTS, _SKIPPED = range(7)
Sums = dict[MetadataIndex, tuple[int, int]]  # by part or value: its digest, and its elements
Totals = tuple[Any, Any]  # the table of sums by name, and for each name the first one that is the same tensor
Read = Callable[[int, int], bytes]  # offset in a part, and bytes


@dataclass
class Sample:
    """What the live state had at some places, by part. skipped: names of parts that could not be sampled."""

    step: int
    digests: dict[MetadataIndex, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unstored: dict[str, TensorProof] = field(default_factory=dict)


class _Parts:
    """The parts of tensors that a rank has under a layout, whether it stores them or not. ties: see `Proof`."""

    def __init__(self, layout: Layout, flat: Flat) -> None:
        self.layout = layout
        self.items: dict[MetadataIndex, WriteItem] = {
            i.index: i for i in layout.plan.items if i.tensor_data is not None
        }
        self.keys = [(index, _key(index)) for index in self.items]
        storages = {name: storage_of(value) for name, value in flat.items() if isinstance(value, torch.Tensor)}
        self.ties = ties_of({name: where for name, where in storages.items() if where is not None})


class Ledger:
    """Adds up the proof of each save. For the background thread of a save, except `sample`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._names: list[str] = []  # the same on all ranks
        self._about: list[tuple[str, tuple[int, ...]] | None] = []  # dtype and shape, None for a value; on rank 0
        self._elements = np.zeros(0, np.uint64)  # of each, on rank 0
        self._shared = 0  # of them, not per rank
        self._parts: _Parts | None = None
        self._sample = Sample(-1)
        self._known: dict[str, tuple[int, int | None]] = {}  # by name of a value: checksum of its bytes, digest
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transom-proof")
        self._adding: Future[Totals] | None = None

    def agree(self, metadata: Metadata | None) -> None:
        """The ranks have planned who stores what. A collective; `metadata` is rank 0's."""
        stored = metadata.state_dict_metadata if metadata is not None else {}
        self._names = self._ranks.from_first(sorted(stored))
        self._about = [_described(stored[name]) for name in sorted(stored)]
        sizes = [math.prod(about[1]) if about is not None else 0 for about in self._about]
        self._elements = np.array(sizes, np.uint64)
        self._shared = sum(not name.startswith(f"{RANKS}.") for name in self._names)

    @torch.no_grad()
    def sample(self, step: int, flat: Flat, snapshot: Snapshot, unstored: Flat) -> None:
        """Sample the live state, in the training thread. Nothing may have written to it since it was copied.

        Args:
            unstored: parameters that an optimizer changes and that the checkpoint does not have.
        """
        if self._parts is None or self._parts.layout is not snapshot.layout:
            self._parts = _Parts(snapshot.layout, flat)
        found = Sample(step)
        stride, turn = max(1, -(-self._shared // SAMPLED)), xxhash.xxh32_intdigest(str(step).encode())
        later: list[tuple[MetadataIndex, torch.Tensor]] = []
        for index, key in self._parts.keys:
            if (key + turn) % stride:  # not by the step itself: only multiples of the interval are saved
                continue
            local = local_part(flat[index.fqn])
            if not local.nbytes:
                continue
            if type(local) not in PLAIN or not local.is_contiguous() or local.is_conj() or local.is_neg():
                found.skipped.append(index.fqn)
            elif local.is_cpu:
                found.digests[index] = _sampled(step, index, local.nbytes, _reader(local.data_ptr()))
            elif len(later) < ON_DEVICE:
                later.append((index, local))
            else:
                found.skipped.append(index.fqn)
        found.digests |= _sampled_on_device(step, later)
        found.unstored |= self._unstored(unstored)
        self._sample = found

    def _unstored(self, tensors: Flat) -> dict[str, TensorProof]:
        found: dict[str, TensorProof] = {}
        for name, tensor in tensors.items():
            local = local_part(tensor)
            [digest] = digests([Part(local, tuple(local.shape), (0,) * local.ndim)])
            dtype = str(local.dtype).removeprefix("torch.")
            found[f"{RANKS}.{self._ranks.rank}.{name}"] = TensorProof(dtype, tuple(local.shape), digest)
        return found

    def live(
        self, step: int, layout: Layout, flat: Flat, objects: list[tuple[MetadataIndex, bytes]], unstored: Flat
    ) -> Future[Sums]:
        """Start to compute the digests of the live state, which is written without a snapshot. For the training thread.

        Nothing may write to the state until the result is there.
        """
        self._parts = _Parts(layout, flat)
        self._sample = Sample(step, skipped=[block.index.fqn for block in layout.blocks])
        self._sample.unstored |= self._unstored(unstored)
        tensors = {block.index: local_part(flat[block.index.fqn]) for block in layout.blocks if block.envelope.nbytes}
        return self._thread.submit(self._sums, tensors, objects)

    def begin(self, snapshot: Snapshot, places: list[Place]) -> None:
        """Start to add up what this rank stores: the bytes in the buffer are complete."""
        stored = frozenset(index for index, *_ in places)
        self._adding = self._thread.submit(self._add, snapshot, stored)

    def begin_live(self, sums: Sums, places: list[Place]) -> None:
        """The same for a rank that has written its live state. sums: the result of `live`."""
        stored = frozenset(index for index, *_ in places)
        self._adding = self._thread.submit(self._totals, sums, stored, {})

    @property
    def unstored(self) -> dict[str, TensorProof]:
        return self._sample.unstored

    def total(self) -> tuple[str, Totals]:
        """This rank's trouble or "", and the tables of all ranks, added: on rank 0. A collective."""
        table = np.zeros((7, len(self._names)), np.uint64)
        roots = np.zeros(len(self._names), np.int64)
        trouble = ""
        if self._adding is not None:
            try:
                table, roots = self._adding.result()
            except Exception as error:  # the other ranks wait
                trouble = f"its digests could not be computed: {describe(error)}"
            self._adding = None
        if self._ranks.group is not None:
            sums, ties = torch.from_numpy(table.view(np.int64)), torch.from_numpy(roots)
            dist.reduce(sums, 0, group=self._ranks.group)
            dist.reduce(ties, 0, dist.ReduceOp.MAX, group=self._ranks.group)
        return trouble, (table, roots)

    def proof(self, totals: Totals, unstored: dict[str, TensorProof]) -> tuple[Proof, str]:
        """The proof, and why the save must fail or "". Called by rank 0."""
        table, roots = totals
        tensors, values, uncovered = dict(unstored), {}, []
        columns = zip(self._names, self._about, table[_DIGEST].tolist(), table[_COUNT].tolist(), strict=True)
        for name, about, digest, count in columns:
            if about is not None:
                tensors[name] = TensorProof(*about, digest)
            elif count:
                values[name] = digest
            else:
                uncovered.append(name)
        stale = [self._names[n] for n in np.flatnonzero(_differs(table))]
        short = [
            f"{self._names[n]} ({table[_COUNT, n]} of {self._elements[n]} elements)"
            for n in np.flatnonzero(table[_COUNT] != self._elements)
            if self._about[n] is not None
        ]
        trouble = ""
        if stale:
            trouble = f"what would be stored is not the live state of {some(stale, NAMED)}"
        elif short:
            trouble = f"the ranks' shards do not add up to {some(short, NAMED)}"
        ties = _groups(self._names, roots)
        return Proof(tensors, values, ties, tuple(uncovered)), trouble

    def close(self) -> None:
        self._thread.shutdown()

    @torch.no_grad()
    def _add(self, snapshot: Snapshot, stored: frozenset[MetadataIndex]) -> Totals:
        buffer, sample = snapshot.buffer, self._sample
        parts: dict[MetadataIndex, torch.Tensor] = {}
        samples: dict[MetadataIndex, int] = {}
        for block in snapshot.layout.blocks:
            index, size = block.index, block.envelope.nbytes
            if index in stored and size:
                parts[index] = buffer.bytes[block.payload : block.payload + size]
                if index in sample.digests:
                    samples[index] = _sampled(sample.step, index, size, _reader(buffer.address + block.payload))
        objects = [(i, bytes(buffer.view(start, length))) for i, start, length in snapshot.objects if i in stored]
        return self._totals(self._sums(parts, objects), stored, samples)

    @torch.no_grad()
    def _sums(self, tensors: dict[MetadataIndex, torch.Tensor], objects: list[tuple[MetadataIndex, bytes]]) -> Sums:
        """tensors: parts of this rank, as they are or as bytes."""
        assert self._parts is not None
        parts: list[Part] = []
        for index, tensor in tensors.items():
            about = self._parts.items[index].tensor_data
            assert about is not None
            if tensor.shape != about.chunk.sizes or tensor.dtype != about.properties.dtype:
                tensor = tensor.view(about.properties.dtype).view(about.chunk.sizes)
            parts.append(Part(tensor, tuple(about.size), tuple(about.chunk.offsets)))
        counts = [part.tensor.numel() for part in parts]
        values = ((index, self._value(index.fqn, data)) for index, data in objects)
        return dict(zip(tensors, zip(digests(parts), counts, strict=True), strict=True)) | {
            index: (value, 1) for index, value in values if value is not None
        }

    def _totals(self, sums: Sums, stored: frozenset[MetadataIndex], samples: dict[MetadataIndex, int]) -> Totals:
        """samples: of the stored bytes, at the places where the live state was sampled."""
        assert self._parts is not None
        position = {name: number for number, name in enumerate(self._names)}
        table = np.zeros((7, len(self._names)), np.uint64)
        columns = ((sums, _DIGEST, _COUNT), ({i: (d, 1) for i, d in samples.items()}, _STORED, _STORED_PARTS))
        for found, digest_row, count_row in columns:
            for index, (digest, count) in found.items():
                if index in stored:
                    table[digest_row, position[index.fqn]] += np.uint64(digest)
                    table[count_row, position[index.fqn]] += np.uint64(count)
        for index, digest in self._sample.digests.items():
            table[_LIVE, position[index.fqn]] += np.uint64(digest)
            table[_LIVE_PARTS, position[index.fqn]] += np.uint64(1)
        for name in self._sample.skipped:
            table[_SKIPPED, position[name]] += np.uint64(1)
        roots = np.zeros(len(self._names), np.int64)
        for group in self._parts.ties:
            here = [position[name] for name in group if name in position]
            roots[here] = min(here, default=0) + 1
        return table, roots

    def _value(self, name: str, data: bytes) -> int | None:
        """The digest of a stored value. Most have not changed since the last save."""
        total = xxhash.xxh3_64_intdigest(data)
        known = self._known.get(name)
        if known is None or known[0] != total:
            try:
                known = total, digest_of(name, safe_unpickle.value(data, name))
            except Exception:  # it needs code to be loaded: not covered
                known = total, None
            self._known[name] = known
        return known[1]


def _differs(table: Any) -> Any:
    """For each name, whether the stored bytes are other ones than those that were sampled."""
    stored = np.maximum(table[_STORED_PARTS], np.uint64(1))
    copies, rest = table[_LIVE_PARTS] // stored, table[_LIVE_PARTS] % stored
    wrong = (rest != 0) | (table[_LIVE] != table[_STORED] * copies)
    return wrong & (table[_SKIPPED] == 0) & (table[_STORED_PARTS] != 0)


def _described(stored: Any) -> tuple[str, tuple[int, ...]] | None:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    return str(stored.properties.dtype).removeprefix("torch."), tuple(stored.size)


def _key(index: MetadataIndex) -> int:
    return int(xxhash.xxh32_intdigest(f"{index.fqn} {tuple(index.offset or ())}".encode()))


def _sampled(step: int, index: MetadataIndex, size: int, read: Read) -> int:
    seed = _key(index)
    return int(xxhash.xxh3_64_intdigest(b"".join([read(*line) for line in _lines(step, seed, size)]), seed=seed))


def _lines(step: int, seed: int, size: int) -> list[tuple[int, int]]:
    """The places in a part of `size` bytes: its beginning, its end, and others in each save."""
    if size <= _LINE * _LINES:
        return [(0, size)]
    places = [(seed + step * k * 0x9E3779B1) * 0x85EBCA6B % (size - _LINE) for k in range(1, _LINES - 1)]
    return [(at, _LINE) for at in (0, size - _LINE, *places)]


def _reader(address: int) -> Read:
    return lambda at, size: ctypes.string_at(address + at, size)


def _sampled_on_device(step: int, parts: list[tuple[MetadataIndex, torch.Tensor]]) -> dict[MetadataIndex, int]:
    """Copy all lines to the CPU at once."""
    seeds = [_key(index) for index, _ in parts]
    lines = [_lines(step, seed, local.nbytes) for seed, (_, local) in zip(seeds, parts, strict=True)]
    by_device: dict[torch.device, list[int]] = {}
    for number, (_, local) in enumerate(parts):
        by_device.setdefault(local.device, []).append(number)
    found: dict[MetadataIndex, int] = {}
    for numbers in by_device.values():
        bytes_of = {n: parts[n][1].reshape(-1).view(torch.uint8) for n in numbers}
        together = torch.cat([bytes_of[n][at : at + size] for n in numbers for at, size in lines[n]]).cpu()
        data, at = together.numpy().tobytes(), 0
        for n in numbers:
            size = sum(length for _, length in lines[n])
            found[parts[n][0]] = int(xxhash.xxh3_64_intdigest(data[at : at + size], seed=seeds[n]))
            at += size
    return found


def _groups(names: list[str], roots: Any) -> tuple[tuple[str, ...], ...]:
    groups: dict[int, list[str]] = {}
    for name, root in zip(names, roots.tolist(), strict=True):
        if root:
            groups.setdefault(root, []).append(name)
    return tuple(sorted(tuple(group) for group in groups.values() if len(group) > 1))
