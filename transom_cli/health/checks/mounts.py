"""File systems that the job needs: do they answer, can the job write to them, is there room.

Each path is probed in a thread of its own, so that hanging ones cost one deadline together. The write test writes,
flushes, reads back and removes a small file, because a file system may be mounted read-write and still refuse writes.

A folder that one node cannot use while others can is a SUSPECT. `judge.demote_shared_trouble` compares the nodes: a
problem that most nodes share is the file server's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from dataclasses import dataclass, replace

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.system import BackgroundCall, Mount, mount_of, read_mount_table, wait_for_all


@dataclass(frozen=True)
class Room:
    """Free space. used, inodes: fractions of what an ordinary user may fill; None if not reported.

    free, size: bytes. waited: seconds without an answer so far, 0.0 if there was one. error: the system's message.
    """

    path: str
    used: float | None = None
    inodes: float | None = None
    free: int = 0
    size: int = 0
    waited: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class RoomLimits:
    """Fractions of the space, or of the inodes; seconds.

    room_used: critical in gcm's `check-storage disk-usage`. room_full: no source; too little for staging a checkpoint,
    a heartbeat or a log line. room_no_answer: NVRx's timeout for a path.
    """

    room_used: float = 0.85
    room_full: float = 0.99
    room_no_answer: float = 15.0


class RoomReader:
    """Reads one path in at most one thread: a file system that hangs blocks only that thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._call: BackgroundCall[Room] | None = None

    def read(self, timeout: float) -> Room:
        """Wait at most `timeout` seconds. If an earlier call is still pending, wait for that one."""
        call = self._call = self._call or BackgroundCall(lambda: read_room(self._path))
        found = call.result(timeout)
        if found is None:
            return Room(self._path, waited=call.waited)
        self._call = None
        return found


def read_room(path: str) -> Room:
    """Read free space. Blocks for as long as the file system does."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Room(path, error=error.strerror or str(error))
    full = found.f_blocks - found.f_bfree
    usable, nodes = full + found.f_bavail, found.f_files
    return Room(
        path,
        used=full / usable if usable else None,
        inodes=(nodes - found.f_favail) / nodes if nodes else None,
        free=found.f_bavail * found.f_frsize,
        size=found.f_blocks * found.f_frsize,
    )


def judge_room(node: str, room: Room, limits: RoomLimits, shared: bool = False) -> Finding:
    """Judge free space. shared: a network file system; if it is full, that is not this node's fault."""
    check = f"room:{room.path}"
    if room.waited:
        verdict = Verdict.MONITOR if room.waited >= limits.room_no_answer else Verdict.UNKNOWN
        return Finding(check, verdict, node, f"{room.path} has not answered for {room.waited:.0f} s")
    if room.used is None:
        return Finding(check, Verdict.UNKNOWN, node, f"{room.path}: {room.error or 'it reports no size'}")
    fullest = max(room.used, room.inodes or 0.0)
    inodes = "" if room.inodes is None else f", {room.inodes:.0%} of its inodes"
    text = f"{room.path}: {room.used:.0%} of its space{inodes} used, {room.free / 2**20:.0f} MiB free"
    if fullest >= limits.room_full and not shared:
        return Finding(check, Verdict.SUSPECT, node, text, Remedy.AVOID)
    if fullest >= limits.room_used:
        return Finding(check, Verdict.MONITOR, node, text, Remedy.SETUP if shared else Remedy.WATCH)
    return Finding(check, Verdict.PASS, node, text)


FINDINGS = ("mount", "write", "room", "shm")
"""The first three are followed by a path: "mount:/shared/run"."""

TIMEOUT = 10.0  # seconds for all paths together; NVRx gives a path 15 s, and a preflight has 30 s in all
VISIBLE_WITHIN = 3.0  # seconds for a folder that another node made to appear here
SHM = "/dev/shm"
LOCAL = ("/tmp", SHM)
"""Paths that exist on every node and are local to it."""

_BYTES = 4096
_BEFORE_WRITING = ("stat", "statvfs")
_STICKY = 0o1777


@dataclass(frozen=True)
class Place:
    """What one path answered.

    at: the call that was made last ("stat", "statvfs", "make", "write", "fsync", "read", "remove"), "" on success.
    error: how that call failed, "" while it hangs. waited: seconds in all. mount: the file system, for a person.
    network: other nodes may mount it too. mode: the folder's permission bits. writes: a write was to be tested.
    no_room: the error is a full disk or an exceeded quota.
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


@dataclass(frozen=True)
class MountsLimits(RoomLimits):
    """mount_slow, mount_hung: seconds for all calls on one path. A reading waits 10 s, so a larger mount_hung finds no
    hang. No source for the first; NVRx gives a path 15 s, with nothing else waiting.

    shm_size: bytes; no source: containers come with 64 MiB, where NCCL and data loaders die with "bus error".
    """

    mount_slow: float = 2.0
    mount_hung: float = 10.0
    shm_size: int = 1 << 30


class _PathProbe:
    """Makes one call after the other on a path, and remembers which one it is in."""

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

    def run(self) -> _PathProbe:
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
        """Retry for a while: attribute caches of network mounts may hide what another node has just made."""
        until = time.monotonic() + (VISIBLE_WITHIN if self.write else 0.0)
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
                os.close(descriptor)  # a network file system may report a full disk only here
            self.at = "read"
            with open(path, "rb") as file:  # noqa: PTH123
                if file.read() != data:
                    raise OSError(errno.EIO, "the bytes read are not the bytes written")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            raise
        self.at = "remove"
        os.unlink(path)  # noqa: PTH108


_PENDING: dict[tuple[str, bool], tuple[_PathProbe, BackgroundCall[_PathProbe]]] = {}
"""Probes of earlier readings in this process that still hang. They are not started again: with a file server that is
down for hours, each reading would cost another thread."""


def read_mounts(about: About, timeout: float = TIMEOUT) -> MountsReading:
    """Probe the job's folders, the network mounts below them, and the node's local folders.

    While a training runs, nothing is written: a thousand nodes would write twice a minute.
    """
    folders = tuple(dict.fromkeys(os.path.abspath(folder) for folder in about.folders))  # noqa: PTH100
    mounts = read_mount_table()
    under = (mount_of(folder, mounts) for folder in folders)
    network = [m.at for m in under if m is not None and m.network and m.at not in folders]
    wanted = [(path, about.tier is not Tier.WATCH) for path in dict.fromkeys((*folders, *LOCAL))]
    wanted += [(path, False) for path in dict.fromkeys(network)]
    probes = [_PENDING.pop(one) if one in _PENDING else _start(*one) for one in wanted]
    wait_for_all([call for _, call in probes], timeout)
    mounts = read_mount_table()  # again: a probe may have mounted something (autofs)
    _PENDING.update((one, probe) for one, probe in zip(wanted, probes, strict=True) if probe[0].hangs)
    return MountsReading(tuple(_place(probe, call.waited, mounts) for probe, call in probes))


def _start(path: str, write: bool) -> tuple[_PathProbe, BackgroundCall[_PathProbe]]:
    probe = _PathProbe(path, write)
    return probe, BackgroundCall(probe.run)


def _place(probe: _PathProbe, waited: float, mounts: tuple[Mount, ...]) -> Place:
    mount = mount_of(probe.real, mounts)
    return Place(
        path=probe.path,
        at=probe.at,
        error=probe.error,
        waited=waited,
        mount=str(mount) if mount else "",
        network=mount is not None and mount.network,
        mode=probe.mode,
        room=probe.room,
        writes=probe.write,
        no_room=probe.no_room,
    )


def judge_mounts(node: str, reading: MountsReading, about: About, limits: MountsLimits) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for place in reading.places:
        if place.path == SHM:
            found.append(_judge_shm(node, place, limits))
        else:
            found.append(_judge_mount(node, place, limits))
        if place.writes and place.path != SHM:
            found.append(_judge_write(node, place, limits))
        if place.room is not None:
            shared = place.network and place.path not in LOCAL
            found.append(judge_room(node, replace(place.room, path=place.path), limits, shared))
    return tuple(found)


def _judge_mount(node: str, place: Place, limits: MountsLimits) -> Finding:
    check = f"mount:{place.path}"
    if place.at in _BEFORE_WRITING:
        return _failure(check, node, place, limits)
    text = f"{place.path} answers ({place.mount})"
    if not place.hangs and place.waited >= limits.mount_slow:
        return Finding(check, Verdict.MONITOR, node, f"{text} after {place.waited:.1f} s", Remedy.WATCH)
    return Finding(check, Verdict.PASS, node, text)


def _judge_write(node: str, place: Place, limits: MountsLimits) -> Finding:
    check = f"write:{place.path}"
    if place.at in _BEFORE_WRITING:
        return Finding(check, Verdict.UNKNOWN, node, f"{place.path}: write not tested, because it did not answer")
    if place.at:
        return _failure(check, node, place, limits)
    text = f"wrote, flushed, read back and removed a file in {place.path} in {place.waited:.2f} s"
    return Finding(check, Verdict.PASS, node, text)


def _failure(check: str, node: str, place: Place, limits: MountsLimits) -> Finding:
    where = f" ({place.mount})" if place.mount else ""
    if place.hangs:
        text = f"{place.path}{where}: no answer to `{place.at}` for {place.waited:.1f} s"
        hung = place.waited >= limits.mount_hung
        return Finding(check, Verdict.SUSPECT if hung else Verdict.MONITOR, node, text, Remedy.AVOID)
    text = f"{place.path}{where}: `{place.at}` failed: {place.error}"
    if place.no_room and place.network:  # full for every node
        return Finding(check, Verdict.MONITOR, node, text, Remedy.SETUP)
    return Finding(check, Verdict.SUSPECT, node, text, Remedy.AVOID)


def _judge_shm(node: str, place: Place, limits: MountsLimits) -> Finding:
    if place.at:
        return _failure("shm", node, place, limits)
    mode = stat.S_IMODE(place.mode or 0)
    size = place.room.size if place.room else 0
    text = f"{SHM} has {size / 2**20:.0f} MiB, mode {mode:04o}"
    if mode != _STICKY:
        return Finding("shm", Verdict.MONITOR, node, f"{text} instead of 1777", Remedy.SETUP)
    if size < limits.shm_size:
        return Finding("shm", Verdict.MONITOR, node, f"{text}: too little for NCCL and data loaders", Remedy.SETUP)
    return Finding("shm", Verdict.PASS, node, text)


CHECK = Check(
    name="mounts",
    reader="transom_cli.health.checks.mounts:read_mounts",
    judge=judge_mounts,
    reading=MountsReading,
    limits=MountsLimits,
    seconds=15.0,
    tier=Tier.WATCH,
    findings=FINDINGS,
    overdue="probing the file systems",
)
