"""Find one share of a snapshot: in this node's memory, in a peer's, or by rebuilding it from parity.

Every byte that is handed on was checked against the record here, or will be by the asker; what does not match is passed
over like a share that is lost, and said.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from transom_cli.ckpt.files import digest_segments
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.snapshot.buffer import Segments
from transom_cli.ckpt.snapshot.peers import Membership
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.rpc.errors import RpcError

PULL = 600.0  # seconds for a share to come over; a line without a byte is given up far sooner (lines.STALL)

Rebuild = Callable[[int, FileEntry, memoryview], str]  # step, share, where to put it; returns why it cannot be


class ShareNotFound(Exception):
    """The share cannot be had: the text says what was tried."""


@dataclass
class Found:
    """A share in memory. `fd` is not the caller's; `end` is to be called when it is no longer needed."""

    fd: int
    size: int  # bytes of the memory
    segments: Segments
    where: str
    checked: bool = True
    end: Callable[[], None] = field(default=lambda: None, repr=False)


class Finder:
    def __init__(self, store: Store, members: Membership, rebuild: Rebuild | None = None) -> None:
        self._store, self._members, self._rebuild = store, members, rebuild

    def find(self, step: int, entry: FileEntry, *, check: bool = True) -> Found:
        """Without `check`, what is held here is not looked at: the asker does it. Raises ShareNotFound."""
        tried: list[str] = []
        near = self._here(step, entry, tried, check)
        if near is not None:
            return near
        peers = self._members.current
        answers = peers.call_all("held", 5.0, [n for n in peers.nodes if n != peers.own], step=step)
        with_it = [n for n, answer in answers.items() if [entry.name, entry.xxh3_128] in answer.get("held", [])]
        fresh = _Fresh(entry.size)
        try:
            for node in with_it:
                try:
                    peers.call(node, "read", PULL, fresh.memory, step=step, file=entry.name, start=0, size=entry.size)
                except RpcError as error:
                    tried.append(f"{node}: {error.what}")
                    continue
                if digest_segments(fresh.memory, ((0, entry.size),)) == entry.xxh3_128:
                    return fresh.found(f"the memory of {node}")
                tried.append(f"{node}: its bytes are damaged")
            if self._rebuild is not None:
                trouble = self._rebuild(step, entry, fresh.memory)
                if not trouble and digest_segments(fresh.memory, ((0, entry.size),)) == entry.xxh3_128:
                    return fresh.found("parity in memory")
                tried.append(trouble or "what was made from parity is damaged")
        except BaseException:
            fresh.close()
            raise
        fresh.close()
        raise ShareNotFound(f"{entry.name}: " + ("; ".join(tried) or "no node holds it"))

    def _here(self, step: int, entry: FileEntry, tried: list[str], check: bool) -> Found | None:
        pinned = contextlib.ExitStack()
        try:
            share, buffer = pinned.enter_context(self._store.reading(step, entry.name))
        except KeyError:
            return None
        if share.sum == entry.xxh3_128 and share.size == entry.size:
            if not check or digest_segments(buffer.memory, share.segments) == entry.xxh3_128:
                return Found(buffer.fd, buffer.size, share.segments, "own memory", check, pinned.close)
            tried.append("this node: its bytes are damaged")
        pinned.close()
        return None


class _Fresh:
    def __init__(self, size: int) -> None:
        self.size = size
        self._fd = os.memfd_create("transom-share", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, max(1, size))
            self._map = mmap.mmap(self._fd, max(1, size))
        except OSError:
            os.close(self._fd)
            raise
        self.memory = memoryview(self._map)[:size]

    def found(self, where: str) -> Found:
        return Found(self._fd, max(1, self.size), ((0, self.size),), where, end=self.close)

    def close(self) -> None:
        self.memory.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)
