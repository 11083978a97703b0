"""A job's memory holders in one process, without torch: real shelves, memfds and parity; questions are plain calls."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable

import xxhash
from processes import wait_for

from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.snapshot.asking import LineFailed
from transom_cli.ckpt.snapshot.holding import Holding
from transom_cli.ckpt.snapshot.launches import Launch
from transom_cli.ckpt.snapshot.neighbours import Neighbours
from transom_cli.ckpt.snapshot.protection import parse
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.snapshot.slot import Share, Slot

LAUNCH = Launch("7.0.0", "launch")
METADATA = b"torch's own"


class Job:
    """Nodes with one rank each. `data`: by rank its share. `dead`: nodes that do not answer; `said`: by all."""

    def __init__(self, protect: str, data: list[bytes], domains: dict[str, str] | None = None) -> None:
        self.names = [f"n{n}" for n in range(len(data))]
        self.dead: set[str] = set()
        self.cut_off: dict[str, int] = {}  # node -> reads that it still answers
        self.said: list[str] = []
        self.holdings = {name: Holding("/checkpoints", "token", name, self.said.append) for name in self.names}
        for name, holding in self.holdings.items():
            holding.neighbours = Direct(self, name)
            holding.protecting.choose(parse(protect), domains or {}, None)
        for rank, name in enumerate(self.names):
            shelf = self.holdings[name].shelf
            shelf.join(LAUNCH, rank, True)
            for index in range(4):
                shelf.lend(LAUNCH, rank, index, slot(1 << 16), write=False)

    @property
    def first(self) -> Holding:
        return self.holdings[self.names[0]]

    def commit(self, step: int, data: list[bytes]) -> None:
        entries = []
        for rank, (name, share) in enumerate(zip(self.names, data, strict=True)):
            shelf = self.holdings[name].shelf
            index, busy = shelf.take(LAUNCH, rank, 0.0)
            assert index is not None, busy
            mine = {n: s for r, n, s in _slots(shelf) if r == rank}[index]
            mine.memory[: len(share)] = share
            total = xxhash.xxh3_128_hexdigest(share)
            entries.append(FileEntry(f"__{rank}_0.distcp", len(share), total))
            shelf.hold(LAUNCH, rank, Share(step, entries[-1].name, len(share), total, ((0, len(share)),)))
        own = FileEntry(".metadata", len(METADATA), xxhash.xxh3_128_hexdigest(METADATA))
        manifest = Manifest(
            step, len(data), "7.0.0", "2.6.0", "now", tuple(sorted([own, *entries], key=lambda e: e.name))
        )
        self.entries = {entry.name: entry for entry in entries}
        for name in self.names:
            if name not in self.dead:
                record = Record(encode(manifest), METADATA)
                self.holdings[name].shelf.commit(LAUNCH, step, record, ["being protected"])

    def protect(self, step: int) -> None:
        self.first.protecting.begin(step)
        wait_for(lambda: not self.first.protecting.busy, 60)

    def lose(self, names: Iterable[str]) -> None:
        """These nodes, with what they held; others stand in for them, and hold nothing."""
        for name in names:
            self.holdings[name].close()
            self.holdings[name] = fresh = Holding("/checkpoints", "token", name, self.said.append)
            fresh.neighbours = Direct(self, name)

    def find(self, node: str, rank: int, step: int) -> tuple[bytes, str]:
        """Rank's share, as that node gets it, and from where."""
        found = self.holdings[node].finder.find(step, self.entries[f"__{rank}_0.distcp"])
        try:
            data = b"".join(os.pread(found.fd, length, start) for start, length in found.segments)
        finally:
            found.end()
        return data, found.where


class Direct(Neighbours):
    def __init__(self, job: Job, own: str) -> None:
        super().__init__("/checkpoints", own, {}, b"", lambda name, about: job.holdings[own].answer(name, about))
        self._job = job

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self._job.names)

    def ask(self, node: str, name: str, timeout: float, into: memoryview | None = None, **about: object) -> dict:
        job = self._job
        if node in job.dead:
            raise LineFailed(f"{node} does not answer")
        if name == "read" and node != self.own and node in job.cut_off:
            job.cut_off[node] -= 1
            if job.cut_off[node] < 0:
                raise LineFailed(f"{node} has gone in the middle")
        try:
            answer, pieces = job.holdings[node].answer(name, dict(about))
        except Exception as error:
            raise LineFailed(f"{node}: {error}") from error
        if into is not None:
            data = b"".join(pieces)
            assert len(data) == len(into)
            into[:] = data
        return answer


def slot(size: int) -> Slot:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return Slot(fd, size)


def _slots(shelf) -> list[tuple[int, int, Slot]]:
    return [(rank, n, slot) for rank, had in shelf._ranks.items() for n, slot in had.slots.items()]


def damage(job: Job, name: str, step: int, at: int) -> None:
    """Flip a bit of the share that the node holds."""
    for _, _, slot in _slots(job.holdings[name].shelf):
        if slot.share is not None and slot.share.step == step:
            slot.memory[at] ^= 1
