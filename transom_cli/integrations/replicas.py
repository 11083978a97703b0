"""Elastic replicas: ranks with the same state train on without a lost one, until its replacement joins them.

    @recoverable(replicas="elastic")
    def train(ctx):
        model = ctx.keep("model", build)    # before the ranks meet: the others do not wait for it
        ctx.join("gloo")                    # in place of init_process_group
        ...

An order of the launcher names the ranks that live (TRANSOM_REPLICAS), which train at once. The first of them serves a
store at the launch's rendezvous. A replacement says there that it is ready, and waits. Whenever a step is done and
ranks are missing, the others agree on who is ready, leave their groups, and enter the training again together with it.
Each such change of members is a generation, with groups of its own.

With HSDP a replica is several ranks in a row. If one of them is lost, the others wait with its replacement, and the
replica joins as a whole.

The first members come first in the order of ranks, newcomers last: what DistributedDataParallel broadcasts from rank 0
is then the state of a rank that has one. The state itself comes from a rank that has it (`ckpt.live`).
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from transom_cli.errors import UsageError
from transom_cli.heartbeat import paths
from transom_cli.integrations.sockets import sockets

CONNECT = 1.0  # seconds of one try
SERVE = datetime.timedelta(minutes=30)  # torch's limit for values of the store
LOOK = 0.02  # seconds between two looks of a rank that waits to be admitted
GONE = 15.0  # seconds without the store, after which a rank that has reached it waits no longer


class Joins(BaseException):
    """A replacement joins: raised at the end of a step, on all ranks. Not an Exception: trainers catch these."""


class Finished(BaseException):
    """The training has ended without this rank."""


@dataclass(frozen=True)
class Members:
    """The ranks of one generation, as the launcher numbers them, in the order of torch's ranks.

    size: ranks of a replica.
    """

    ranks: tuple[int, ...]
    generation: int = 0
    size: int = 1

    @classmethod
    def at_start(cls, order: str, world: int, size: int = 1) -> Members:
        """The members at the start of a launch. order: as in TRANSOM_REPLICAS; "": all. If no replica is whole: all."""
        alive = tuple(map(int, order.split(","))) if order else tuple(range(world))
        return cls(_whole(alive, size) or tuple(range(world)), size=size)

    def missing(self, world: int) -> tuple[int, ...]:
        return tuple(rank for rank in range(world) if rank not in self.ranks)

    def with_joined(self, ready: tuple[int, ...]) -> Members:
        """With the replicas that are ready as a whole. The same object if none is."""
        joining = _whole(ready, self.size)
        return Members((*self.ranks, *joining), self.generation + 1, self.size) if joining else self

    def encode(self) -> str:
        return json.dumps([self.generation, self.ranks, self.size])

    @classmethod
    def decode(cls, text: str | bytes) -> Members:
        generation, ranks, size = json.loads(text)
        return cls(tuple(ranks), generation, size)


def _whole(ranks: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Those of whole replicas."""
    count = Counter(rank // size for rank in ranks)
    return tuple(rank for rank in ranks if count[rank // size] == size)


class Replicas:
    """This process's place among the members. For the main thread."""

    def __init__(self, rank: int, size: int = 1) -> None:
        self._rank, self.size = rank, size
        self._world = int(os.environ.get("WORLD_SIZE") or 1)
        if size < 1 or self._world % size:
            raise UsageError(
                f"ranks_per_replica={size} does not divide the {self._world} ranks of this training",
                hint="pass the size of the device mesh's sharded dimension",
            )
        self._launch = -1
        self._store: Any = None
        self._members = Members(())
        self._votes: Any = None
        os.environ.pop(paths.WORLD_SIZE, None)  # heartbeats would end a rank in a smaller world

    def join(self, backend: str | None, **options: Any) -> None:
        """Form the process group with the other members. A rank that is none waits until they admit it."""
        if self._launch != paths.own_launch():
            self._launch, self._store = paths.own_launch(), None
            order = os.environ.get(paths.REPLICAS, "")
            self._members = Members.at_start(order, self._world, self.size)
            self._store = self._meet(serves=self._rank == int(order.split(",")[0] or 0))
            if self._rank not in self._members.ranks:
                self._members = self._admitted()
        ranks = self._members.ranks
        store = dist.PrefixStore(f"replicas-{self._members.generation}", self._store)
        dist.init_process_group(
            backend, store=store, rank=ranks.index(self._rank), world_size=len(ranks), **options
        )  # fmt: skip
        missing = self._members.missing(self._world)
        self._votes = dist.new_group(backend="gloo") if missing and len(ranks) > 1 else None

    def boundary(self) -> None:
        """Admit the ranks that are ready. Called by all members after a step. Raises Joins if there are any."""
        missing = self._members.missing(self._world)
        if not missing or not dist.is_initialized():
            return
        ready = torch.zeros(len(missing), dtype=torch.uint8)
        first = self._rank == self._members.ranks[0]
        if first:
            ready += torch.tensor([self._store.check([f"ready-{rank}"]) for rank in missing], dtype=torch.uint8)
        if self._votes is not None:
            dist.broadcast(ready, src=0, group=self._votes)
        members = self._members.with_joined(tuple(itertools.compress(missing, ready.tolist())))
        if members is self._members:
            return
        joining, self._members = members.ranks[len(self._members.ranks) :], members
        if first:
            for rank in joining:
                self._store.set(f"admitted-{rank}", self._members.encode())
        raise Joins

    def left(self) -> None:
        """The groups are gone."""
        self._votes = None

    def _meet(self, *, serves: bool) -> Any:
        """The store of the launch, on the node of its first rank that lives. Raises Finished."""
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        while True:
            try:
                if not serves:  # torch's own tries are too far apart
                    socket.create_connection((host, port), CONNECT).close()
                with sockets.new():
                    return dist.TCPStore(host, port, is_master=serves, timeout=SERVE, wait_for_workers=False)
            except (OSError, RuntimeError):
                if serves:
                    raise
                self._look_for_the_end()
                time.sleep(LOOK)

    def _admitted(self) -> Members:
        """Wait until the members admit this rank. Raises Finished."""
        key, gone = f"admitted-{self._rank}", 0.0
        said = False
        while True:
            try:
                if not said:
                    self._store.set(f"ready-{self._rank}", "1")
                    said = True
                if self._store.check([key]):
                    return Members.decode(self._store.get(key))
            except RuntimeError:  # its process has ended: an order or the end of the training follows
                self._look_for_the_end()
                gone = gone or time.monotonic()
                if time.monotonic() - gone > GONE:
                    raise
            time.sleep(LOOK)

    def _look_for_the_end(self) -> None:
        """Raise Finished if another rank of this launch has ended well."""
        folder = Path(os.environ.get(paths.ATTEMPT_DIR, "")) / "exits" / str(self._launch)
        for path in folder.glob("rank-*.json"):
            try:
                if json.loads(path.read_text()).get("code") == 0:
                    raise Finished
            except (OSError, ValueError):
                continue
