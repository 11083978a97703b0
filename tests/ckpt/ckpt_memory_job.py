"""A job's snapshot daemons in one process, without torch: real stores, memfds and parity; questions are plain calls."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable

import xxhash
from processes import wait_for

from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.snapshot.peers import Peers
from transom_cli.ckpt.snapshot.protection import parse
from transom_cli.ckpt.snapshot.record import Buffer, Launch, Record, Share
from transom_cli.ckpt.snapshot.training import Training
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.verbs import Call

LAUNCH = Launch("7.0.0", "launch")
METADATA = b"torch's own"


class Job:
    """Nodes with one rank each. `data`: by rank its share. `dead`: nodes that do not answer; `said`: by all."""

    def __init__(self, protect: str, data: list[bytes], domains: dict[str, str] | None = None) -> None:
        self.names = [f"n{n}" for n in range(len(data))]
        self.dead: set[str] = set()
        self.cut_off: dict[str, int] = {}  # node -> reads that it still answers
        self.said: list[str] = []
        self.trainings = {name: Training("/checkpoints", "token", name, self.said.append) for name in self.names}
        for name, training in self.trainings.items():
            training.members.current = Direct(self, name)
            training.protector.choose(parse(protect), domains or {}, None)
        for rank, name in enumerate(self.names):
            store = self.trainings[name].store
            store.join(LAUNCH, rank, True)
            for index in range(4):
                store.lend(LAUNCH, rank, index, buffer(1 << 16), write=False)

    @property
    def first(self) -> Training:
        return self.trainings[self.names[0]]

    def commit(self, step: int, data: list[bytes]) -> None:
        entries = []
        for rank, (name, share) in enumerate(zip(self.names, data, strict=True)):
            store = self.trainings[name].store
            index, busy = store.take(LAUNCH, rank, 0.0)
            assert index is not None, busy
            mine = {n: s for r, n, s in _buffers(store) if r == rank}[index]
            mine.memory[: len(share)] = share
            total = xxhash.xxh3_128_hexdigest(share)
            entries.append(FileEntry(f"__{rank}_0.distcp", len(share), total))
            store.hold(LAUNCH, rank, Share(step, entries[-1].name, len(share), total, ((0, len(share)),)))
        own = FileEntry(".metadata", len(METADATA), xxhash.xxh3_128_hexdigest(METADATA))
        manifest = Manifest(
            step, len(data), "7.0.0", "2.6.0", "now", tuple(sorted([own, *entries], key=lambda e: e.name))
        )
        self.entries = {entry.name: entry for entry in entries}
        for name in self.names:
            if name not in self.dead:
                record = Record(encode(manifest), METADATA)
                self.trainings[name].store.commit(LAUNCH, step, record, ["being protected"])

    def protect(self, step: int) -> None:
        self.first.protector.begin(step)
        wait_for(lambda: not self.first.protector.busy, 60)

    def lose(self, names: Iterable[str]) -> None:
        """These nodes, with what they held; others stand in for them, and hold nothing."""
        for name in names:
            self.trainings[name].close()
            self.trainings[name] = fresh = Training("/checkpoints", "token", name, self.said.append)
            fresh.members.current = Direct(self, name)

    def find(self, node: str, rank: int, step: int) -> tuple[bytes, str]:
        """Rank's share, as that node gets it, and from where."""
        found = self.trainings[node].finder.find(step, self.entries[f"__{rank}_0.distcp"])
        try:
            data = b"".join(os.pread(found.fd, length, start) for start, length in found.segments)
        finally:
            found.end()
        return data, found.where


class Direct(Peers):
    def __init__(self, job: Job, own: str) -> None:
        super().__init__("/checkpoints", own, {}, b"", lambda call: job.trainings[own].answer(call))
        self._job = job

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._job.names)

    def call(self, node: str, name: str, timeout: float, into: memoryview | None = None, **about: object) -> dict:
        job = self._job
        if node in job.dead:
            raise RpcError(f"{node} does not answer")
        if name == "read" and node != self.own and node in job.cut_off:
            job.cut_off[node] -= 1
            if job.cut_off[node] < 0:
                raise RpcError(f"{node} has gone in the middle")
        try:
            reply = job.trainings[node].answer(_sent(Call(name, dict(about))))
        except Exception as error:
            raise RpcError(f"{node}: {error}") from error
        if into is not None:
            data = b"".join(reply.bulk)
            assert len(data) == len(into)
            into[:] = data
        return reply.answer


def _sent(call: Call) -> Call:
    """As it arrives: JSON has no tuples."""
    return Call.decode(json.loads(json.dumps(call.encode())))


def buffer(size: int) -> Buffer:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return Buffer(fd, size)


def _buffers(store) -> list[tuple[int, int, Buffer]]:
    return [(rank, n, buffer) for rank, had in store._ranks.items() for n, buffer in had.buffers.items()]


def damage(job: Job, name: str, step: int, at: int) -> None:
    """Flip a bit of the share that the node holds."""
    for _, _, buffer in _buffers(job.trainings[name].store):
        if buffer.share is not None and buffer.share.step == step:
            buffer.memory[at] ^= 1
