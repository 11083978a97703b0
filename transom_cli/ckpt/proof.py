"""Prove that a resumed training has the state that was saved.

A checkpoint's manifest carries a `Proof`: a digest of every tensor and value by name, with its dtype and shape, and
which names are one tensor (tied weights). The digests do not depend on how the state is divided among ranks
(`ckpt.digest`). `ckpt.proof_save` computes them from the bytes that are stored. `differences` computes them again from
the live objects that the trainer will step with, on all ranks together. So it finds whatever went wrong in between: a
shard that was read to the wrong place, an optimizer without its moments, an object that ignored its state.

These functions work with any flat state, and are what integrations of training frameworks call:

    proof = prove(flat, gather, rank=rank)                              # before any library saves the state
    wrong = differences(proof, flat, gather, ranks=ranks)    # after any library has restored it
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from transom_cli.ckpt.digest import MASK, Part, digests, value_digest
from transom_cli.ckpt.state import RANKS, RNG
from transom_cli.ckpt.tree import PLAIN, Flat, Whole, local_part
from transom_cli.plural import some

SCHEMA = 1
NAMED = 10  # names in a message
_PARAMETERS = re.compile(r".*\.param_groups\.\d+\.params")  # the names of an optimizer's parameters
Gather = Callable[[Any], list[Any]]  # the values of all ranks, on every rank
Box = tuple[str, tuple[int, ...], tuple[int, ...]]  # name, offsets, sizes
Total = Callable[[list[list[int]]], list[list[int]]]  # columns of 64-bit numbers, added over all ranks


class Undecodable(ValueError):
    """The text is no proof, or one of a newer version."""


@dataclass(frozen=True)
class TensorProof:
    dtype: str  # without "torch."
    shape: tuple[int, ...]
    digest: int

    @property
    def count(self) -> int:
        """Its elements, or 1 if it has none: so that a rank without the tensor is told apart."""
        return _count(self.shape)


@dataclass(frozen=True)
class Proof:
    """tensors and values: by name. ties: groups of names that are one tensor. uncovered: values without a digest."""

    tensors: dict[str, TensorProof]
    values: dict[str, int]
    ties: tuple[tuple[str, ...], ...] = ()
    uncovered: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Proof:
        """The same proof, with other names for some values."""
        if not names:
            return self
        return replace(
            self,
            tensors={names.get(name, name): one for name, one in self.tensors.items()},
            values={names.get(name, name): one for name, one in self.values.items()},
            ties=tuple(tuple(names.get(name, name) for name in group) for group in self.ties),
            uncovered=tuple(names.get(name, name) for name in self.uncovered),
        )

    def encode(self) -> str:
        body = {
            "schema": SCHEMA,
            "tensors": {name: [t.dtype, list(t.shape), f"{t.digest:016x}"] for name, t in self.tensors.items()},
            "values": {name: f"{digest:016x}" for name, digest in self.values.items()},
            "ties": [list(group) for group in self.ties],
            "uncovered": list(self.uncovered),
        }
        packed = zlib.compress(json.dumps(body, sort_keys=True, separators=(",", ":")).encode(), 1)
        return base64.b64encode(packed).decode("ascii")


def decode(text: str) -> Proof | None:
    """The proof in a manifest; None if it carries none. Raises Undecodable."""
    if not text:
        return None
    try:
        body = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        if body["schema"] != SCHEMA:
            raise Undecodable(f"the digests have schema {body['schema']}, and this transom knows {SCHEMA}")
        return Proof(
            {name: TensorProof(str(t[0]), tuple(map(int, t[1])), int(t[2], 16)) for name, t in body["tensors"].items()},
            {name: int(digest, 16) for name, digest in body["values"].items()},
            tuple(tuple(map(str, group)) for group in body["ties"]),
            tuple(map(str, body["uncovered"])),
        )
    except Undecodable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, zlib.error) as error:
        raise Undecodable(f"the digests cannot be read ({type(error).__name__})") from None


@dataclass(frozen=True)
class Difference:
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def listed(found: Iterable[Difference]) -> str:
    """The differences in one line, the first few by name."""
    return some(found, NAMED, "; ")


def prove(flat: Flat, gather: Gather, total: Total | None = None, *, rank: int = 0) -> Proof:
    """The proof of a live state. A collective: each rank passes what it holds, and all get the same answer.

    Of a value that several ranks hold, the lowest rank's counts.

    Args:
        flat: names to tensors (also DTensor) and plain values.
        gather: see `Gather`; `alone` with one rank.
        total: see `Total`. Default: by `gather`.
    """
    mine = _Live(flat)
    everyones = gather((mine.about, mine.values, mine.ties, mine.uncovered, mine.boxes))
    about: dict[str, tuple[str, tuple[int, ...]]] = {}
    values: dict[str, int] = {}
    owners: dict[Box, int] = {}
    for number, (theirs, held, _, _, boxes) in enumerate(everyones):
        about = theirs | about
        values = held | values
        for box in boxes:
            owners.setdefault(box, number)
    names = sorted(about)
    sums = dict.fromkeys(names, 0)
    for box, digest in zip(mine.boxes, mine.digests, strict=True):
        if owners[box] == rank:
            sums[box[0]] += digest
    [column] = (total or summed_by(gather))([[sums[name] & MASK for name in names]])
    tensors = {name: TensorProof(*about[name], digest) for name, digest in zip(names, column, strict=True)}
    uncovered = sorted({name for one in everyones for name in one[3]})
    return Proof(tensors, values, joined(one[2] for one in everyones), tuple(uncovered))


def differences(
    proof: Proof, flat: Flat, gather: Gather, total: Total | None = None, *, ranks: int,
    skip: Callable[[str], bool] = lambda name: False, must_tie: Callable[[str, str], bool] = lambda name, other: True,
) -> list[Difference]:  # fmt: skip
    """Compare a live state, on all ranks together, with what was saved. All ranks get the same answer.

    Every copy of a replicated tensor counts. Values of the state that the proof does not name are not compared.

    Args:
        flat: what this rank will train with: names to tensors and plain values.
        skip: names that are meant to differ, such as those that start afresh. The same on all ranks.
        must_tie: whether two names that were one tensor must be one again.

    Returns:
        Which values differ, and how; nothing if the state is the saved one.
    """
    others = tuple(f"{RANKS}.{other}." for other in _ranks_in(proof) if not 0 <= other < ranks)
    tensors = {n: t for n, t in proof.tensors.items() if not n.startswith(others) and not skip(n)}
    values = {n: d for n, d in proof.values.items() if not n.startswith(others) and not skip(n)}
    mine = _Live({name: value for name, value in flat.items() if name in tensors or name in values})
    found: dict[str, str] = {}
    for name, digest in values.items():
        if name in mine.values and mine.values[name] != digest:
            found[name] = "its value differs"
        elif name in mine.about:
            found[name] = "it is a tensor, and was none"
        elif name in mine.uncovered:
            found[name] = "it is of another type"
    for name, was in tensors.items():
        if name in mine.about and mine.about[name] != (was.dtype, was.shape):
            found[name] = f"it is {_described(*mine.about[name])}, and was {_described(was.dtype, was.shape)}"
        elif name in flat and name not in mine.about:
            found[name] = "it is no tensor any more"
    for name, parts in mine.whole().items():
        if name in tensors and name not in found and parts != tensors[name].digest:
            found[name] = "its elements differ"
    for group in proof.ties:
        apart = _untied(group, mine.storages, must_tie)
        if apart:
            found.setdefault(apart[0], f"it was one tensor with {apart[1]}, and is not any more")
    wrong = _by_rank(gather(found))
    names = [*sorted(tensors), *sorted(values)]
    counts = mine.counts | dict.fromkeys((*mine.values, *mine.uncovered), 1)
    columns = [[column.get(name, 0) for name in names] for column in (mine.sums, counts)]
    for name, digest, count in zip(names, *(total or summed_by(gather))(columns), strict=True):
        one = tensors.get(name)
        if name in wrong or (one is not None and 0 in one.shape):
            continue
        if not count:
            wrong[name] = "it is missing"
        elif one is not None and count % one.count:
            wrong[name] = f"the ranks hold {count} elements in all, and it has {one.count}"
        elif one is not None and digest != one.digest * (count // one.count) & MASK:
            wrong[name] = "its elements differ"
    return [Difference(name, wrong[name]) for name in sorted(wrong)]


def digest_of(name: str, value: Any) -> int | None:
    """The digest of a plain value, or of a tensor that is stored as one; None for a type that is not known.

    The order of the parameters in a group does not count: their state is stored by name.
    """
    if isinstance(value, Whole):
        value = value.tensor
    if isinstance(value, list) and _PARAMETERS.fullmatch(name) and all(isinstance(one, str) for one in value):
        value = sorted(value)
    return value_digest(value)


def alone(value: Any) -> list[Any]:
    """The `Gather` of one rank."""
    return [value]


def summed_by(gather: Gather) -> Total:
    """Add columns with a gather: for few ranks."""

    def total(columns: list[list[int]]) -> list[list[int]]:
        everyones = gather(columns)
        return [[sum(cells) & MASK for cells in zip(*same, strict=True)] for same in zip(*everyones, strict=True)]

    return total


def summed_in(group: Any) -> Total:
    """Add columns with one collective of a process group on the CPU; None: one rank."""

    def total(columns: list[list[int]]) -> list[list[int]]:
        if group is None:
            return columns
        table = torch.tensor([[_signed(cell) for cell in column] for column in columns], dtype=torch.int64)
        dist.all_reduce(table, group=group)
        return [[cell & MASK for cell in column] for column in table.tolist()]

    return total


def is_unavailable(name: str, flat: Flat) -> bool:
    """Whether it is the state of a generator that this machine does not have: of a GPU that is not here."""
    return name.startswith(RANKS) and f".{RNG}.cuda." in name and name not in flat


def joined(ties: Iterable[Iterable[tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """The ties of all ranks, each once."""
    return tuple(sorted({group for of_rank in ties for group in of_rank}))


def ties_of(storages: dict[str, Any]) -> list[tuple[str, ...]]:
    """The groups of names that have the same storage."""
    groups: dict[Any, list[str]] = {}
    for name, where in storages.items():
        groups.setdefault(where, []).append(name)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def storage_of(tensor: torch.Tensor) -> Any:
    """What identifies the memory of a tensor; None if it has none."""
    local = local_part(tensor)
    try:
        address = local.data_ptr()
    except RuntimeError:  # a subclass without storage
        return None
    return (address, tuple(local.shape), local.stride(), local.dtype) if address and local.numel() else None


def local_parts(tensor: Any) -> Iterator[Part]:
    """What this rank holds of a tensor: of a plain tensor all, of a DTensor or ShardedTensor its shards."""
    if type(tensor) in PLAIN or not isinstance(tensor, DTensor):
        if hasattr(tensor, "local_shards"):  # FSDP1
            for shard in tensor.local_shards():
                yield Part(shard.tensor, tuple(tensor.size()), tuple(shard.metadata.shard_offsets))
            return
        yield Part(tensor, tuple(tensor.shape), (0,) * tensor.ndim)
    elif tensor.device_mesh.get_coordinate() is not None:
        shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        local = tensor.to_local()
        if tuple(local.shape) != tuple(shape):
            raise ValueError(f"a shard is {list(local.shape)}, and its placements say {list(shape)}")
        if local.numel():
            yield Part(local, tuple(tensor.shape), tuple(offset))


class _Live:
    """What this rank holds: its parts of tensors, and digests of them."""

    def __init__(self, flat: Flat) -> None:
        self.about: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.values: dict[str, int] = {}
        self.uncovered: list[str] = []
        self.storages: dict[str, Any] = {}
        parts: list[tuple[str, Part]] = []
        self._own: set[str] = set()  # held as a whole
        for name, value in flat.items():
            if not isinstance(value, torch.Tensor):
                digest = digest_of(name, value)
                if digest is None:
                    self.uncovered.append(name)
                else:
                    self.values[name] = digest
                continue
            self.about[name] = str(value.dtype).removeprefix("torch."), tuple(value.shape)
            where = storage_of(value)
            if where is not None:
                self.storages[name] = where
            if not isinstance(value, DTensor) and not hasattr(value, "local_shards"):
                self._own.add(name)
            parts += [(name, part) for part in local_parts(value)]
        self.ties = ties_of(self.storages)
        self.sums: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.boxes: list[Box] = [(name, part.offsets, tuple(part.tensor.shape)) for name, part in parts]
        self.digests = digests([part for _, part in parts])
        for (name, _, shape), one in zip(self.boxes, self.digests, strict=True):
            self.sums[name] = (self.sums.get(name, 0) + one) & MASK
            self.counts[name] = self.counts.get(name, 0) + _count(shape)

    def whole(self) -> dict[str, int]:
        """The digests of tensors that this rank holds as a whole."""
        return {name: digest for name, digest in self.sums.items() if name in self._own}


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return max(1, count)


def _described(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


def _untied(
    group: tuple[str, ...], storages: dict[str, Any], must_tie: Callable[[str, str], bool]
) -> tuple[str, str] | None:
    """Two names of the group that this rank holds as separate tensors, and that must be one."""
    here = [name for name in group if name in storages]
    if len({storages[name] for name in here}) <= 1:
        return None
    apart = ((name, first) for first, name in combinations(here, 2) if storages[name] != storages[first])
    return next((pair for pair in apart if must_tie(*pair)), None)


def _by_rank(found: list[dict[str, str]]) -> dict[str, str]:
    """All ranks' differences. If some ranks alone differ, say which."""
    wrong: dict[str, str] = {}
    for name in {name for held in found for name in held}:
        ranks = [rank for rank, held in enumerate(found) if name in held]
        where = f" on rank {', '.join(map(str, ranks[:4]))}{' and others' if len(ranks) > 4 else ''}"
        wrong[name] = found[ranks[0]][name] + ("" if len(ranks) == len(found) else where)
    return wrong


def _ranks_in(proof: Proof) -> set[int]:
    names = (*proof.tensors, *proof.values)
    return {
        int(name.split(".")[1]) for name in names if name.startswith(f"{RANKS}.") and name.split(".")[1].isdecimal()
    }


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
