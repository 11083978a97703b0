"""Snapshots' parts made without a trainer: memory to lend, shares, records, launches."""

from __future__ import annotations

import fcntl
import os

import xxhash

from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA
from transom_cli.ckpt.snapshot.record import Buffer, Launch, Record, Share

SIZE = 4096  # bytes of a buffer


def memory(size: int = SIZE, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("transom-snapshot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def buffer(size: int = SIZE) -> Buffer:
    return Buffer(memory(size), size)


def data(step: int, rank: int) -> bytes:
    return b"%d of rank %d " % (step, rank) * 8


def entry(step: int, rank: int) -> FileEntry:
    held = data(step, rank)
    return FileEntry(f"__{rank}_0.distcp", len(held), xxhash.xxh3_128_hexdigest(held))


def share(step: int, rank: int) -> Share:
    """As if `data` stood at the memory's begin."""
    found = entry(step, rank)
    return Share(step, found.name, found.size, found.xxh3_128, ((0, found.size),))


def record(step: int, ranks: int, attempt: str = "7.0.1") -> Record:
    metadata = b"torch's own words on step %d" % step
    own = FileEntry(DCP_METADATA, len(metadata), xxhash.xxh3_128_hexdigest(metadata))
    files = tuple(sorted([own, *(entry(step, rank) for rank in range(ranks))], key=lambda one: one.name))
    return Record(encode(Manifest(step, ranks, attempt, "2.6.0", "2026-01-01T00:00:00+00:00", files)), metadata)


def launch(number: int) -> Launch:
    """Numbered as under Slurm."""
    return Launch(f"7.0.{number}", f"token-{number}")


def by_hand(name: str) -> Launch:
    """Started without Slurm: nothing tells which of two is the newer one but who came last."""
    return Launch(f"local-host-{len(name)}", name)
