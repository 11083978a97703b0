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

import ctypes
import io
import itertools
import marshal
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard

from transom_cli.ckpt.digest import Part, digest, value_digest
from transom_cli.ckpt.failures import RanksDiffer
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save import doubt
from transom_cli.ckpt.save.layout import Layout, Signature
from transom_cli.ckpt.save.serialize import told_apart
from transom_cli.ckpt.state import RANKS, State
from transom_cli.ckpt.tree import PLAIN, Flat, Whole, local_part
from transom_cli.plural import several

NAMED = 10  # values in an error
EACH_SAVE = 16 << 20  # bytes compared at each save
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
    """A value that differs between rank `first` and `others`. odd: the ranks outside the majority, or all of them."""

    name: str
    first: int
    others: tuple[int, ...]
    odd: tuple[int, ...]
    majority: bool

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
                holders = sorted(digests)
                odd, majority = outside_majority([(digests[rank],) for rank in holders])
                found.append(Difference(index.fqn, first, others, tuple(holders[i] for i in odd), majority))
    answer: list[Difference] = ranks.from_first(found)
    return answer


def outside_majority(rows: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], bool]:
    """Return the positions of rows that differ from the strict majority; all positions if there is none."""
    first, count = Counter(rows).most_common(1)[0]
    if count * 2 <= len(rows):
        return tuple(range(len(rows))), False
    return tuple(i for i, row in enumerate(rows) if row != first), True


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
        return digest(Part(local, tuple(local.shape), (0,) * local.ndim))
    local = local.cpu()
    size = local.nbytes
    return xxhash.xxh3_64_intdigest((ctypes.c_char * size).from_address(local.data_ptr())) if size else 0


def _quick_digest(value: Any) -> int | None:
    """Equal for equal values. Version 2 of marshal's format does not depend on which objects are shared."""
    if type(value) in (list, tuple, int, float, str, bool, type(None)) and told_apart(value) and not _has_dict(value):
        return xxhash.xxh3_64_intdigest(marshal.dumps(value, 2))
    return _digest_of_value(value)


def _has_dict(value: Any) -> bool:
    """Whether there is a dict in it, whose order does not matter."""
    return isinstance(value, dict) or (isinstance(value, (list, tuple)) and any(map(_has_dict, value)))


def _digest_of_value(value: Any) -> int | None:
    """A checksum that is equal for equal values, even if they share objects; None for one that cannot be pickled."""
    return value_digest(value.tensor if isinstance(value, Whole) else value, _pickled)


def _pickled(value: Any) -> bytes | None:
    """An object of a class that `value_digest` does not know, without references to objects that it has twice."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=4)
    pickler.fast = True
    try:
        pickler.dump(value)
    except Exception:  # it fails the copy, with its name
        return None
    return stream.getvalue()


def _together(texts: Iterable[str]) -> int:
    total = xxhash.xxh3_64()
    for text in texts:
        total.update(text.encode() + b"\0")
    return total.intdigest()


def _listed(ranks: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


@dataclass(frozen=True)
class Comparison:
    """Result of comparing replicas. whole: a rank compared everything. complete: all ranks did. note: a warning.

    digests: of each rank, if they are comparable.
    """

    refused: RanksDiffer | None = None
    found: tuple[Difference, ...] = ()
    digests: tuple[str, ...] = ()
    trouble: str = ""
    note: str = ""
    whole: bool = False
    complete: bool = False


def compare(ranks: Ranks, proof: Proof | None, checksums: list[Short | None]) -> Comparison:
    """Compare what the checkpoint stores once for all ranks. A collective."""
    found = differences(ranks, proof, checksums)
    whole = any(short is not None and not short[3] for short in checksums)
    complete = all(short is not None and not short[3] for short in checksums)
    if found:
        refused = refusal(found)
        sharded = any(short is None or short[1] for short in checksums)
        digests = () if sharded else tuple(f"{short[0]:016x}" for short in checksums if short is not None)
        words = f"{refused.what}: {found[0].text}"
        return Comparison(refused, tuple(found), digests, words, whole=whole, complete=complete)
    note = buffers_note(proof, checksums) if proof is not None else ""
    return Comparison(note=note, whole=whole, complete=complete)


class ReplicaCheck:
    """Which checksums this rank makes in a save. refusal: set when ranks differ, until it is raised."""

    def __init__(self, ranks: Ranks, state: State, say: Callable[[str], None]) -> None:
        self._ranks, self._state, self._say = ranks, state, say
        self.refusal: RanksDiffer | None = None
        self.doubt: doubt.Doubt | None = None  # set with it, if hardware may be the reason
        self.clean = -1  # the newest step at which all replicas were equal
        self._stepped: frozenset[str] = frozenset()  # names of parameters and their optimizer state
        self._equal: Signature | None = None  # replicas of this signature were found equal on all ranks
        self._equal_as: Signature | None = None  # the whole signature that it belongs to
        self._each_save: list[MetadataIndex] = []  # what is compared at each save
        self._noted: set[str] = set()

    def forget(self) -> None:
        """Compare everything at the next save."""
        self._equal, self._equal_as = None, None

    def proof(self, flat: Flat, layout: Layout) -> Proof | None:
        """Make the checksums. Nothing may write to the values meanwhile."""
        if self._ranks.size == 1:
            return None
        about = self._equal
        if layout.signature is not self._equal_as:
            about = shared(layout.signature)
            if about == self._equal:
                self._equal_as = layout.signature
                self._each_save = checked_each_save(flat, layout, self._state.stepped())
        if about is not None and layout.signature is self._equal_as:
            return prove_some(flat, about, self._each_save)
        assert about is not None
        stepped = self._state.stepped()
        self._stepped = frozenset(
            name
            for name, value in flat.items()
            if isinstance(value, torch.Tensor) and local_part(value).untyped_storage().data_ptr() in stepped
        )
        return prove(flat, layout, about, self._state.broadcast(), self._ranks.size)

    def compared(self, step: int, proof: Proof | None, found: Comparison) -> None:
        """Note what the ranks found. If one rank compared everything, all do so until all have found it equal."""
        self.refusal, self.doubt = found.refused, None
        trained = [one for one in found.found if one.name in self._stepped]
        if trained and found.complete and self.clean >= 0 and doubt.supervised():
            odd = tuple(sorted({rank for one in trained for rank in one.odd}))
            names = tuple(one.name for one in trained[:NAMED])
            certain = all(one.majority for one in trained)
            self.doubt = doubt.Doubt(step, self.clean, names, odd, certain, found.digests)
        if found.refused is not None or proof is None or found.whole:
            self.forget()
        if proof is not None and found.complete and found.refused is None:
            self._equal, self.clean = proof.about, step
            if doubt.supervised():
                doubt.repeated(step, proof.short[0])
        if found.note and found.note not in self._noted:
            self._noted.add(found.note)
            self._say(found.note)
