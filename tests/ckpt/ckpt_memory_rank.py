"""A rank without torch: it lends memory to a daemon and commits steps in it, as ckpt.saving.snapshots does."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

import xxhash

from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA
from transom_cli.ckpt.snapshot.record import Launch
from transom_cli.rpc import local
from transom_cli.rpc.local import Client

METADATA = b"torch's own words"
NODE = "n1"


def entry(name: str, data: bytes) -> FileEntry:
    return FileEntry(name, len(data), xxhash.xxh3_128_hexdigest(data))


class Rank:
    """Rank 0 of a world of one."""

    def __init__(self, line: Client, directory: Path, attempt: str = "7.0.0", token: str = "t") -> None:
        self.line, self.attempt = line, attempt
        about = {"launch": asdict(Launch(attempt, attempt)), "directory": str(directory), "token": token}
        told, fds = line.call("join", rank=0, node=NODE, places={}, key="", **about)
        for fd in fds:
            os.close(fd)
        self._next = len(told["buffers"])

    def save(self, step: int, data: bytes) -> None:
        """Into new memory each time."""
        fd = os.memfd_create("rank", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.line.call("lend", [fd], index=self._next, size=len(data), write=True)
        os.close(fd)
        self._next += 1
        mine = entry("__0_0.distcp", data)
        parcel = local.parcel(json.dumps([[0, len(data)]]).encode())
        self.line.call("hold", [parcel], index=None, step=step, file=mine.name, size=mine.size, sum=mine.xxh3_128)
        os.close(parcel)
        files = tuple(sorted((mine, entry(DCP_METADATA, METADATA)), key=lambda e: e.name))
        manifest = encode(Manifest(step, 1, self.attempt, "2.13", "2030-01-01T00:00:00+00:00", files))
        parcel = local.parcel(manifest + METADATA)
        self.line.call("commit", [parcel], step=step, manifest=len(manifest), reserve=[])
        os.close(parcel)
