"""Live state: what survivors of a fault hold in their processes, used in place of an older snapshot.

After each step, `LiveState.mark` notes the values that are small and may change at any time: random numbers, objects,
plain values, buffers. Parameters and their optimizer state are not copied: only an optimizer's step changes them. When
a process leaves its launch (`integrations.recoverable`), its state is whole if no optimizer has begun a step since, and
no tensor was changed in another way. It is then copied to host memory, since modules may be made again or kept.

When the ranks restore, they compare step and digest. They use the newest whole state if all who have it agree, and if
it is complete: ranks that lack it get the shared values from one that has them. A rank's own values are those that it
marked itself, and a replacement on the same node finds those of the rank that died in node memory. If anything is
missing, the newest snapshot is restored as usual. Elastic replicas need no value of a lost rank.

It is for replicas: values that are sharded over all ranks (FSDP, tensor parallelism) are on no other rank. With elastic
replicas of several ranks each (HSDP), a rank's shards are compared and exchanged with the same ranks of other replicas.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
import weakref
import zlib
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as Placed

from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.proof import alone, prove
from transom_cli.ckpt.ranks import Ranks, decode, encode
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.rng import derived
from transom_cli.ckpt.state import RANKS, State, undisturbed
from transom_cli.ckpt.tree import PLAIN, Flat, Paths, local_part
from transom_cli.errors import TransomError
from transom_cli.heartbeat import paths, reentry

_HEADER = struct.Struct("<qqqI")  # of a rank's own values in node memory: launch, step, length, CRC
_SLOTS = 2  # the newest step of a rank may be written as it dies


@dataclass(frozen=True)
class Shard:
    """How a DTensor of HSDP lies over the ranks: its local tensor is kept apart. dims: by dimension of the device mesh,
    the tensor's dimension that is sharded over it, or None."""

    dims: tuple[int | None, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, one: DTensor) -> Shard:
        dims = tuple(each.dim if isinstance(each, Placed) else None for each in one.placements)
        return cls(dims, tuple(one.shape), tuple(one.stride()))

    def placed(self, local: torch.Tensor, live: Flat) -> DTensor:
        """The same on the device mesh of the values that are here now."""
        mesh = next((one.device_mesh for one in live.values() if isinstance(one, DTensor)), None)
        if mesh is None:
            raise ValueError("no value of this rank is sharded")
        placements = [Replicate() if dim is None else Placed(dim) for dim in self.dims]
        return DTensor.from_local(
            local.to(mesh.device_type), mesh, placements, run_check=False, shape=torch.Size(self.shape),
            stride=self.stride,
        )  # fmt: skip


@dataclass(frozen=True)
class Left:
    """What a process took along when it left a launch. why: why it is not whole; then there are no values."""

    step: int = -1
    launch: int = -1
    why: str = "it has made no step here"
    shared: Flat = field(default_factory=dict)
    own: Flat = field(default_factory=dict)
    paths: Paths = field(default_factory=dict)  # of both
    shards: dict[str, Shard] = field(default_factory=dict)  # of values that are sharded within a replica
    digest: str = ""  # of the shared values without those of `firsts`
    firsts: frozenset[str] = frozenset()  # values that may differ; rank 0's counts


@dataclass(frozen=True)
class Offer:
    """What a rank has, as in `Left`. owns: the newest steps for which it has its own values, as (launch, step)."""

    step: int
    launch: int
    why: str
    digest: str
    owns: tuple[tuple[int, int], ...]
    firsts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The live state to use: a step, the ranks that hold it whole, and those that lack it. why: none is used."""

    step: int = -1
    holders: tuple[int, ...] = ()
    why: str = ""

    @classmethod
    def of(cls, offers: list[Offer], *, elastic: bool, size: int = 1) -> Choice:
        """Choose by what all ranks have. size: ranks of a replica; each has its own shards, and a digest of them."""
        step = max(offer.step for offer in offers)
        holders = tuple(rank for rank, offer in enumerate(offers) if offer.step == step)
        if step < 0:
            return cls(why=next((offer.why for offer in offers if offer.launch >= 0), ""))
        first = offers[holders[0]]
        for shard in range(size):
            having = {(offers[rank].digest, offers[rank].launch) for rank in holders if rank % size == shard}
            if not having:
                return cls(why=f"no rank has shard {shard} after step {step}")
            if len(having) > 1 or any(launch != first.launch for _, launch in having):
                return cls(why=f"the ranks differ after step {step}")
        lacking = [rank for rank, offer in enumerate(offers) if (first.launch, step) not in offer.owns]
        if lacking and not elastic:
            return cls(why=f"what rank {lacking[0]} alone had after step {step} is not known")
        if first.firsts and holders[0] and not elastic:
            return cls(why=f"rank 0's {first.firsts[0]} counts for all ranks, and is lost")
        return cls(step, holders)


class LiveState:
    """The state of this process after its last complete step. For the main thread."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._passing: Paths = {}  # values that may change at any time
        self._small = b""  # those that are no tensors, or this rank's own
        self._buffers: Flat = {}  # copies; torch's own layers change them without a new version
        self._stored: frozenset[str] = frozenset()
        self._versions: list[tuple[torch.Tensor, int]] = []  # of parameters
        self._step = -1
        self._unfit = ""
        self._noted = False
        self._firsts: frozenset[str] | None = None
        self._own = None if reentry.elastic_replicas() else OwnValues.here()

    def mark(self, step: int, *, restored: bool = False) -> None:
        """Note that `step` is complete: nothing changes until the next one begins.

        Args:
            restored: it was restored, so that the model may not be wrapped yet.
        """
        if not self._noted:
            self._noted = True
            launch = paths.own_launch()
            _trained.update({id(one): (weakref.ref(one), launch) for one in self._state.optimized()})
        if self._unfit:
            return
        try:
            if self._step < 0:
                with undisturbed():
                    flat, _ = self._state.read()
                self._unfit, self._stored = _not_replicated(flat), frozenset(flat)
                if self._unfit:
                    return
            if self._firsts is None and not restored:
                self._firsts = self._state.from_first(self._stored)
            flat, where = self._state.passing()
            held = {key: one for key, one in flat.items() if isinstance(one, torch.Tensor) and where[key][0] != RANKS}
            small = _packed({key: (where[key], one) for key, one in flat.items() if key not in held})
            buffers = self._state.buffer_values()
            self._buffers = {key: one.detach().clone() for key, one in buffers.items() if key in self._stored}
            self._versions = [(one, one._version) for one in (*self._state.optimized(), *held.values())]
            self._passing = where
            self._small, self._step = small, step
        except Exception as error:
            self._unfit = f"it cannot be kept: {describe(error)}"
            return
        if self._own is not None:
            self._own.write(step, small)
        reentry.step_done()

    def leave(self) -> Left:
        """Take the state along, if it is whole."""
        launch = paths.own_launch()
        why = self._unfit or self._torn()
        if self._step < 0 or why:
            return Left(launch=launch, why=why) if why else Left(launch=launch)
        try:
            small = _unpacked(self._small)
            with undisturbed():
                flat, where = self._state.read()
            if unknown := self._passing.keys() - flat.keys():
                return Left(launch=launch, why=f"{min(unknown)} is not in it any more")
            flat |= self._buffers
            flat |= {key: one for key, (_, one) in small.items()}
            shards = {key: Shard.of(one) for key, one in flat.items() if isinstance(one, DTensor)}
            held = {key: local_part(one).detach().to("cpu", copy=True) if isinstance(one, torch.Tensor) else one
                    for key, one in flat.items()}  # fmt: skip
            shared = {key: one for key, one in held.items() if where[key][0] != RANKS}
            own = {key: one for key, one in held.items() if key not in shared}
            firsts = self._firsts or frozenset()
            return Left(self._step, launch, "", shared, own, where, shards, _digest(shared, firsts), firsts)
        except (Exception, TransomError) as error:
            return Left(launch=launch, why=f"it cannot be kept: {describe(error)}")

    def _torn(self) -> str:
        if self._step >= 0 and reentry.stepping():
            return f"the step after {self._step} was interrupted while it changed the state"
        changed = any(one._version != version for one, version in self._versions)
        return f"a value has changed since step {self._step}" if changed else ""


class OwnValues:
    """A rank's own values of its newest steps, in node memory, where they outlive it."""

    def __init__(self, folder: str, rank: int) -> None:
        self._paths = [Path(folder) / f"live-{rank}-{slot}" for slot in range(_SLOTS)]
        self._launch = paths.own_launch()

    @classmethod
    def here(cls) -> OwnValues | None:
        folder = os.environ.get(paths.BEAT_DIR)
        return cls(folder, paths.own_rank()) if folder else None

    def write(self, step: int, data: bytes) -> None:
        """What cannot be written is not there when it is needed, and nobody uses an older step instead."""
        with contextlib.suppress(OSError):
            fd = os.open(self._paths[step % _SLOTS], os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(fd, _HEADER.pack(self._launch, step, len(data), zlib.crc32(data)) + data, 0)
            finally:
                os.close(fd)

    def read(self) -> dict[tuple[int, int], bytes]:
        """The steps that are there, by launch and step."""
        found = {}
        for path in self._paths:
            with contextlib.suppress(OSError, struct.error):
                data = path.read_bytes()
                launch, step, length, crc = _HEADER.unpack_from(data)
                body = data[_HEADER.size : _HEADER.size + length]
                if zlib.crc32(body) == crc:
                    found[launch, step] = body
        return found


_left: dict[Path, Left] = {}
"""What this process has taken along, by checkpoints directory."""


_trained: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
"""Parameters that this process has trained, by id, each with the newest launch in which it did."""


def keeps_trained(state: State) -> bool:
    """Whether a parameter was trained in an earlier launch of this process, and not restored in this one."""
    found = ((one, _trained.get(id(one))) for one in state.optimized())
    return any(known is not None and known[0]() is one and known[1] < paths.own_launch() for one, known in found)


def keep(directory: Path, left: Left) -> None:
    _left[directory] = left


def restore(directory: Path, state: State, ranks: Ranks, say: Callable[[str], None]) -> int | None:
    """Use the live state of the launch before, if the ranks have one that is whole. A collective.

    Returns:
        The step, the same on all ranks; None: restore a snapshot.

    Raises:
        RuntimeError: it was received, and is not what was sent: the live state of this process is not known.
    """
    left = _left.pop(directory, Left())
    elastic = reentry.elastic_replicas()
    own = OwnValues.here() if not elastic else None
    there = own.read() if own is not None and left.step < 0 else {}
    mine = ((left.launch, left.step),) if left.step >= 0 else tuple(there)
    offer = Offer(left.step, left.launch, left.why, left.digest, mine, tuple(sorted(left.firsts)))
    offers = ranks.gather(offer)
    size = reentry.ranks_per_replica()
    choice = Choice.of(offers, elastic=elastic, size=size)
    if choice.step < 0:
        if choice.why:
            say(f"the state of the ranks that stayed is not used: {choice.why}")
        return None
    givers = [rank for rank in choice.holders if (rank - ranks.rank) % size == 0]  # they have the same shards
    first = offers[givers[0]]
    receivers = [rank for rank in range(ranks.size) if rank not in choice.holders and (rank - ranks.rank) % size == 0]
    shared, where, shards = left.shared, left.paths, left.shards
    trouble = ""
    if ranks.rank in receivers:
        shared, where, shards = _receive(ranks, givers[receivers.index(ranks.rank) % len(givers)])
    else:
        for receiver in receivers[givers.index(ranks.rank) :: len(givers)]:
            _send(ranks, receiver, (shared, where, shards))
    try:
        values = left.own
        where = {**where, **{key: left.paths[key] for key in values}}
        if not values and not elastic:
            saved = _unpacked(there[first.launch, choice.step])
            values = {key: one for key, (path, one) in saved.items() if path[0] == RANKS}
            where = {**where, **{key: saved[key][0] for key in values}}
        if shards:
            with undisturbed():
                live, _ = state.read()
            shared = {**shared, **{key: shard.placed(shared[key], live) for key, shard in shards.items()}}
        state.write({**shared, **values}, where, per_rank=bool(values))
        if ranks.rank in receivers and elastic:
            state.seed(derived(f"{choice.step} {first.digest} {ranks.rank}"))
        with undisturbed():
            flat, found = state.read()
        now = {key: _local(one) for key, one in flat.items() if found[key][0] != RANKS}
        if _digest(now, first.firsts) != first.digest:
            trouble = "it is not what was sent"
    except (Exception, TransomError) as error:
        trouble = describe(error)
    wrong = [f"rank {rank}: {one}" for rank, one in enumerate(ranks.gather(trouble)) if one]
    if wrong:
        raise RuntimeError(f"transom: the live state of step {choice.step} could not be taken over ({wrong[0]})")
    all_have = len(choice.holders) == ranks.size
    who = "all ranks" if all_have else f"{len(choice.holders)} of {ranks.size} ranks"
    say(f"continues after step {choice.step} from the live state of {who}")
    return choice.step


def _not_replicated(flat: Flat) -> str:
    odd = next((key for key, one in flat.items() if isinstance(one, torch.Tensor) and not _is_replicated(one)), "")
    if not odd:
        return ""
    size = reentry.ranks_per_replica()
    if size > 1:
        return f"{odd} is not sharded within replicas of {size} ranks, or of a special kind"
    return f"{odd} is sharded over the ranks, or of a special kind"


def _is_replicated(one: torch.Tensor) -> bool:
    """Whether the same rank of each replica has the same part."""
    size = reentry.ranks_per_replica()
    if type(one) in PLAIN or size == 1 or not isinstance(one, DTensor):
        return type(one) in PLAIN
    mesh, placements = one.device_mesh, one.placements
    usual = all(type(each) in (Replicate, Placed) for each in placements) and type(one.to_local()) in PLAIN
    of_replica = mesh.ndim == 2 and mesh.size(1) == size and placements[0].is_replicate()
    return usual and of_replica and mesh.get_local_rank(1) == dist.get_rank() % size


def _local(one: Any) -> Any:
    return local_part(one) if isinstance(one, torch.Tensor) else one


def _packed(values: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    torch.save(values, stream)
    return stream.getvalue()


def _unpacked(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = safe_unpickle.value(data, "the live state", map_location="cpu")
    return found


def _digest(shared: Flat, without: Collection[str]) -> str:
    compared = {key: one for key, one in shared.items() if key not in without}
    return hashlib.sha256(prove(compared, alone).encode().encode()).hexdigest()


def _send(ranks: Ranks, to: int, state: tuple[Flat, Paths, dict[str, Shard]]) -> None:
    shared, where, shards = state
    tensors = {key: one for key, one in shared.items() if isinstance(one, torch.Tensor)}
    about = [(key, where[key], one.dtype, tuple(one.shape)) for key, one in tensors.items()]
    values = _packed({key: (where[key], one) for key, one in shared.items() if key not in tensors})
    header = torch.frombuffer(
        bytearray(encode((about, values, [(key, *astuple(one)) for key, one in shards.items()]))), dtype=torch.uint8
    )
    dist.send(torch.tensor([header.numel()]), group=ranks.group, group_dst=to)
    dist.send(header, group=ranks.group, group_dst=to)
    for one in tensors.values():
        if one.numel():
            dist.send(_bytes(one.contiguous()), group=ranks.group, group_dst=to)


def _receive(ranks: Ranks, source: int) -> tuple[Flat, Paths, dict[str, Shard]]:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, group=ranks.group, group_src=source)
    header = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(header, group=ranks.group, group_src=source)
    about, values, layouts = decode(header.numpy().tobytes())
    shards = {key: Shard(*layout) for key, *layout in layouts}
    shared: Flat = {}
    where: Paths = {}
    for key, path, dtype, shape in about:
        shared[key], where[key] = torch.empty(shape, dtype=dtype), path
        if shared[key].numel():
            dist.recv(_bytes(shared[key]), group=ranks.group, group_src=source)
    for key, (path, one) in _unpacked(values).items():
        shared[key], where[key] = one, path
    return shared, where, shards


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
