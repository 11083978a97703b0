"""Check that values which are stored once for all ranks are identical on all of them, bit for bit.

DCP stores a value that several ranks hold from one of them, and assumes that the others hold the same. Expert-parallel
parameters without DTensor, partitions of an optimizer's state, or replicas that have diverged would collapse to one
rank's. So each rank computes a checksum of what it shares with others, and the ranks exchange them: at the first save,
again when names, shapes or types change, and after a restore.

Parameters and their optimizer state are large, and training keeps them equal on purpose. Nothing does so for the rest:
buffers, and tensors and plain values of the trainer's own. Those are compared at each save, the smallest first, as far
as `EACH_SAVE` allows.

A value that only one rank holds (a shard of a mesh over all ranks) needs no checksum.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import marshal
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard

from transom_cli.ckpt.failures import RanksDiffer
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.layout import Layout, Signature
from transom_cli.ckpt.save.serialize import told_apart
from transom_cli.ckpt.state import RANKS
from transom_cli.ckpt.tensor_kinds import Whole, is_dense
from transom_cli.ckpt.tree import PLAIN, Flat, local_part
from transom_cli.plural import several

NAMED = 10  # values in an error
EACH_SAVE = 16 << 20  # bytes compared at each save
_PIECE = 1 << 22  # words hashed at a time on a device, which needs 24 bytes for each
_WORD = 0x9E3779B97F4A7C15  # odd, so that multiplication loses no bit
Short = tuple[int, bool, int, bool]
"""Checksum of all replicas; whether shards must be compared one by one; checksum of the broadcast buffers; whether only
some replicas were compared."""


@dataclass(frozen=True)
class Proof:
    """One rank's checksums. about: names, shapes and types of the values. partial: not of parameters."""

    about: Signature
    each: dict[MetadataIndex, int]
    broadcast: dict[str, int]
    sharded: bool
    partial: bool = False

    @property
    def short(self) -> Short:
        each = sorted((index.fqn, str(index.offset), digest) for index, digest in self.each.items())
        buffers = _together(map(str, sorted(self.broadcast.items())))
        return _together(map(str, each)), self.sharded, buffers, self.partial


@dataclass(frozen=True)
class Difference:
    """A value that differs between rank `first` and `others`."""

    name: str
    first: int
    others: tuple[int, ...]

    @property
    def text(self) -> str:
        if len(self.others) > 4:
            return f"{self.name}: {len(self.others)} ranks differ from rank {self.first}"
        who = f"rank {self.others[0]} differs" if len(self.others) == 1 else f"ranks {_listed(self.others)} differ"
        return f"{self.name}: {who} from rank {self.first}"


def shared(signature: Signature) -> Signature:
    """The part of the signature that is stored once for all ranks."""
    return tuple(entry for entry in signature if entry[1][0] != RANKS)


def prove(flat: Flat, layout: Layout, about: Signature, broadcast: Flat, size: int) -> Proof:
    """Checksums of everything that this rank shares with other ranks. Nothing may write to it meanwhile."""
    paths = layout.plan.planner_data
    each: dict[MetadataIndex, int] = {}
    sharded = False
    for item in layout.plan.items:
        value = flat[item.index.fqn]
        if paths[item.index.fqn][0] == RANKS or (isinstance(value, DTensor) and _one_rank_each(value, size)):
            continue
        digest = _digest_of_part(item, value)
        if digest is not None:
            each[item.index] = digest
            sharded = sharded or isinstance(value, DTensor)
    return Proof(about, each, {key: _digest_of_tensor(value) for key, value in broadcast.items()}, sharded)


def checked_each_save(flat: Flat, layout: Layout, stepped: frozenset[int]) -> list[MetadataIndex]:
    """The replicas to compare at each save. stepped: storages that only an optimizer's step changes."""
    paths = layout.plan.planner_data
    found: list[tuple[int, MetadataIndex]] = []
    for item in layout.plan.items:
        value = flat[item.index.fqn]
        if paths[item.index.fqn][0] == RANKS or isinstance(value, DTensor):
            continue
        if not isinstance(value, torch.Tensor):
            found.append((0, item.index))
        elif value.untyped_storage().data_ptr() not in stepped:
            found.append((value.nbytes, item.index))
    found.sort(key=lambda one: one[0])
    totals = itertools.accumulate(size for size, _ in found)
    return [index for (_, index), total in zip(found, totals, strict=True) if total <= EACH_SAVE]


def prove_some(flat: Flat, about: Signature, chosen: list[MetadataIndex]) -> Proof:
    """Checksums of `checked_each_save`. Nothing may write to these values meanwhile."""
    each: dict[MetadataIndex, int] = {}
    on_device: list[tuple[MetadataIndex, torch.Tensor]] = []
    for index in chosen:
        value = flat[index.fqn]
        if isinstance(value, torch.Tensor) and value.is_cuda and value.nbytes:
            on_device.append((index, value))
        elif isinstance(value, torch.Tensor):
            each[index] = _digest_of_tensor(value)
        elif (digest := _quick_digest(value)) is not None:
            each[index] = digest
    if on_device:  # one transfer for all
        parts = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in on_device]
        held = torch.cat(parts).cpu().split([part.numel() for part in parts])
        each |= {index: _digest_of_tensor(part) for (index, _), part in zip(on_device, held, strict=True)}
    return Proof(about, each, {}, sharded=False, partial=True)


def differences(ranks: Ranks, mine: Proof | None, shorts: list[Short | None]) -> list[Difference]:
    """The values that differ between ranks. A collective: all ranks pass the same `shorts` and get the same answer.

    A rank without a proof takes no part.
    """
    checksums = {short[0] for short in shorts if short is not None}
    if len(checksums) <= 1 and not any(short[1] for short in shorts if short is not None):
        return []
    everyones = ranks.to_first((mine.partial, mine.each) if mine is not None else (False, {}))
    found: list[Difference] = []
    if everyones is not None:
        by_part: dict[tuple[bool, MetadataIndex], dict[int, int]] = {}
        for rank, (partial, held) in enumerate(everyones):
            for index, digest in held.items():
                by_part.setdefault((partial, index), {})[rank] = digest  # the two kinds have checksums of their own
        for (_, index), digests in by_part.items():
            first = min(digests)
            others = tuple(sorted(rank for rank, digest in digests.items() if digest != digests[first]))
            if others:
                found.append(Difference(index.fqn, first, others))
    answer: list[Difference] = ranks.from_first(found)
    return answer


def refusal(found: list[Difference]) -> RanksDiffer:
    words = [difference.text for difference in found[:NAMED]]
    more = len(found) - NAMED
    names = [difference.name for difference in found[:NAMED]]
    declared = ", ".join(f'"{name}"' for name in names) + (", ..." if more > 0 else "")
    hint = (
        f"to keep each rank's own: Checkpointer(..., per_rank=[{declared}]); patterns such as model.experts.* fit too\n"
        f"to save those of rank 0 for all: from_rank_0=[{declared}]\n"
        "if all ranks are to hold the same: make them do so before they save"
    )
    return RanksDiffer(
        f"{several(len(found), 'value')} would be stored once for all ranks, and the ranks do not hold the same",
        "\n".join([*words, f"and {more} more"] if more > 0 else words),
        hint,
    )


def buffers_note(mine: Proof, shorts: Iterable[Short | None]) -> str:
    """A warning if ranks differ in buffers that are saved from rank 0; otherwise ""."""
    if len({short[2] for short in shorts if short is not None and not short[3]}) <= 1:
        return ""
    names = list(mine.broadcast)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"buffers differ by rank ({names[0]}{more}): rank 0's are saved, since DDP broadcasts them before each "
        "forward (broadcast_buffers=True)"
    )


def _one_rank_each(value: DTensor, size: int) -> bool:
    """Whether each part is held by one rank only."""
    return value.device_mesh.size() == size and all(isinstance(one, Shard) for one in value.placements)


def _digest_of_part(item: WriteItem, value: Any) -> int | None:
    """The checksum of a part; None if the value cannot be pickled."""
    if item.tensor_data is None:
        return _digest_of_value(value)
    about = item.tensor_data
    kind = f"{about.properties.dtype}{tuple(about.size)}{tuple(about.chunk.sizes)}"
    return _together([kind, str(_digest_of_tensor(value))])


@torch.no_grad()
def _digest_of_tensor(value: torch.Tensor) -> int:
    local = local_part(value).detach()
    if type(local) not in PLAIN or local.is_conj() or local.is_neg() or not local.is_contiguous():
        local = torch.empty(local.shape, dtype=local.dtype, device=local.device).copy_(local)
    if local.is_cuda and local.nbytes >= 1 << 20:
        return _digest_on_device(local)
    local = local.cpu()
    size = local.nbytes
    return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(local.data_ptr())) if size else 0


def _digest_on_device(local: torch.Tensor) -> int:
    """Sum the words, each multiplied by its own odd number. Integers, so the order of addition does not matter."""
    data = local.reshape(-1).view(torch.uint8)
    whole = data.numel() // 4 * 4
    words = data[:whole].view(torch.int32) if data.data_ptr() % 4 == 0 else data
    factors = (torch.arange(min(_PIECE, words.numel()), device=local.device) * 2 + 1) * (_WORD - (1 << 64))
    sums = [
        (piece.to(torch.int64) * factors[: piece.numel()]).sum() for piece in words.split(_PIECE)
    ]  # wraps around at 64 bits, the same everywhere
    rest = bytes(data[whole:].tolist()) if words is not data else b""
    return _together([str(total) for total in torch.stack(sums).tolist()] + [rest.hex()])


def _quick_digest(value: Any) -> int | None:
    """Equal for equal values. Version 2 of marshal's format does not depend on which objects are shared."""
    if type(value) in (list, tuple, int, float, str, bool, type(None)) and told_apart(value) and not _has_dict(value):
        return xxhash.xxh3_64_intdigest(marshal.dumps(value, 2))
    return _digest_of_value(value)


def _has_dict(value: Any) -> bool:
    """Whether there is a dict in it, whose order does not matter."""
    return isinstance(value, dict) or (isinstance(value, (list, tuple)) and any(map(_has_dict, value)))


def _digest_of_value(value: Any) -> int | None:
    """Return a checksum that is equal for equal values, even if they share objects: pickled without back references."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=4)
    pickler.fast = True
    try:
        pickler.dump(_ordered(value))
    except Exception:  # a value that cannot be pickled fails the copy, with its name
        return None
    return xxhash.xxh3_64_intdigest(stream.getvalue())


def _ordered(value: Any, deep: int = 16) -> Any:
    """Sort sets and dicts: the order of strings in a set differs between processes."""
    if deep == 0:
        raise ValueError("too deep")
    kind = type(value)
    if kind in (set, frozenset):
        return (kind.__name__, sorted((_ordered(one, deep - 1) for one in value), key=repr))
    if kind is dict:
        pairs = ((_ordered(k, deep - 1), _ordered(v, deep - 1)) for k, v in value.items())
        return ("dict", sorted(pairs, key=lambda pair: repr(pair[0])))
    if kind in (list, tuple):
        return (kind.__name__, [_ordered(one, deep - 1) for one in value])
    if isinstance(value, Whole):
        return _ordered(value.tensor, deep)
    if isinstance(value, torch.Tensor):  # torch pickles it with an address
        dense = value if is_dense(value) else value.to_dense()
        return (kind.__name__, str(value.dtype), str(value.layout), tuple(value.shape), _digest_of_tensor(dense))
    return value


def _together(texts: Iterable[str]) -> int:
    total = xxhash.xxh3_64()
    for text in texts:
        total.update(text.encode() + b"\0")
    return total.intdigest()


def _listed(ranks: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
