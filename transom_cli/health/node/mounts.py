"""Do the file systems that the job needs answer, may it write there, and is there room: `read_mounts`.

Each path is asked in a thread of its own: one that hangs costs one deadline, whatever the number of them. A write is
really done, flushed and read back, since a server or an error may have turned a file system read-only that is still
mounted for writing; what is written is removed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from dataclasses import dataclass

from transom_cli.health.about import About, Tier
from transom_cli.health.node.asked import Asked, answers
from transom_cli.health.node.mounted import Mounted, mount_of, read_mounted
from transom_cli.health.room import Room, read_room

PATIENCE = 10.0  # seconds for all answers together; NVRx gives a path 15 s, and a preflight has 30 s for everything
SHOWS = 3.0  # seconds for a folder that was made elsewhere to show here
SHM = "/dev/shm"
LOCAL = ("/tmp", SHM)
"""Every node has them, each its own."""

_BYTES = 4096


@dataclass(frozen=True)
class Place:
    """What one path answered.

    at: what it was asked last ("stat", "statvfs", "make", "write", "fsync", "read", "remove"), "" when all was well.
    error: what it said to that, "" when it owes the answer. waited: seconds in all.

    network: its file system is one that other nodes may have too, `mount` tells which. mode: the folder's rights.
    writes: whether it was to be written to. no_room: the error is one of room, or of a quota.
    """

    path: str
    at: str
    error: str
    waited: float
    mount: str = ""
    network: bool = False
    mode: int | None = None
    room: Room | None = None
    writes: bool = False
    no_room: bool = False

    @property
    def hangs(self) -> bool:
        return bool(self.at) and not self.error


@dataclass(frozen=True)
class MountsReading:
    places: tuple[Place, ...] = ()


class _Asker:
    """Asks one path, step by step, so that of one that hangs it is known in which call."""

    def __init__(self, path: str, write: bool) -> None:
        self.path, self.write = path, write
        self.at, self.error = "stat", ""
        self.real = path
        self.mode: int | None = None
        self.room: Room | None = None
        self.no_room = False

    @property
    def hangs(self) -> bool:
        return bool(self.at) and not self.error

    def ask(self) -> _Asker:
        try:
            self.real = os.path.realpath(self.path)
            self.mode = self._stat().st_mode
            self.at = "statvfs"
            self.room = read_room(self.real)
            if self.room.error:
                self.error = self.room.error
                return self
            if self.write:
                self._write()
        except OSError as error:
            self.error = error.strerror or str(error)
            self.no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
        else:
            self.at = ""
        return self

    def _stat(self) -> os.stat_result:
        """What was made on another node a moment ago may not show here yet (attribute caches of network mounts)."""
        until = time.monotonic() + (SHOWS if self.write else 0.0)
        while True:
            try:
                return os.stat(self.real)  # noqa: PTH116
            except FileNotFoundError:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.2)

    def _write(self) -> None:
        self.at = "make"
        path = os.path.join(self.real, f".transom-check-{os.uname().nodename}-{secrets.token_hex(6)}")  # noqa: PTH118
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = secrets.token_bytes(_BYTES)
            try:
                self.at = "write"
                os.write(descriptor, data)
                self.at = "fsync"
                os.fsync(descriptor)
            finally:
                os.close(descriptor)  # a network file system may tell only here that it has no room
            self.at = "read"
            with open(path, "rb") as file:  # noqa: PTH123
                if file.read() != data:
                    raise OSError(errno.EIO, "what was written is not what is read")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            raise
        self.at = "remove"
        os.unlink(path)  # noqa: PTH108


def read_mounts(about: About) -> MountsReading:
    """The job's folders, the network file systems that they lie on, and what is each node's own.

    Beside a training nothing is written: a thousand nodes would do it twice a minute.
    """
    folders = tuple(dict.fromkeys(os.path.abspath(folder) for folder in about.folders))  # noqa: PTH100
    mounts = read_mounted()
    under = (mount_of(folder, mounts) for folder in folders)
    network = [m.at for m in under if m is not None and m.network and m.at not in folders]
    wanted = [(path, about.tier is not Tier.WATCH) for path in dict.fromkeys((*folders, *LOCAL))]
    wanted += [(path, False) for path in dict.fromkeys(network)]
    both = [_OWED.pop(one) if one in _OWED else _ask(*one) for one in wanted]
    answers([asked for _, asked in both], PATIENCE)
    mounts = read_mounted()  # again: the questions may have mounted something (autofs)
    _OWED.update((one, two) for one, two in zip(wanted, both, strict=True) if two[0].hangs)
    return MountsReading(tuple(_place(asker, asked.waited, mounts) for asker, asked in both))


_OWED: dict[tuple[str, bool], tuple[_Asker, Asked[_Asker]]] = {}
"""Questions of an earlier reading of this process that nobody has answered yet. They are not put again: beside a
training a file server that is away for hours would cost a thread for each look."""


def _ask(path: str, write: bool) -> tuple[_Asker, Asked[_Asker]]:
    asker = _Asker(path, write)
    return asker, Asked(asker.ask)


def _place(asker: _Asker, waited: float, mounts: tuple[Mounted, ...]) -> Place:
    mount = mount_of(asker.real, mounts)
    return Place(
        path=asker.path,
        at=asker.at,
        error=asker.error,
        waited=waited,
        mount=str(mount) if mount else "",
        network=mount is not None and mount.network,
        mode=asker.mode,
        room=asker.room,
        writes=asker.write,
        no_room=asker.no_room,
    )
