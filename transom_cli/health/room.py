"""How much room a file system has. Asked in a thread: one that hangs must hold up nobody but that thread."""

from __future__ import annotations

import os
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.asked import Asked


@dataclass(frozen=True)
class Room:
    """used, inodes: fractions of what an ordinary user may fill, None where there is no such number.

    free, size: bytes. waited: seconds for which the file system has owed an answer, 0.0 when it gave one. error: its
    words.
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

    room_used: gcm's `check-storage disk-usage` is critical there. room_full: no source; what is left is too little for
    a checkpoint's staging, a beat or a log line. room_no_answer: what NVRx gives a path to answer.
    """

    room_used: float = 0.85
    room_full: float = 0.99
    room_no_answer: float = 15.0


class RoomReader:
    """One path, one thread at most: while an answer is owed, no second question is put."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked: Asked[Room] | None = None

    def read(self, patience: float) -> Room:
        """Waits at most `patience` seconds. What is owed from an earlier call is taken when it comes."""
        asked = self._asked = self._asked or Asked(lambda: read_room(self._path))
        found = asked.answer(patience)
        if found is None:
            return Room(self._path, waited=asked.waited)
        self._asked = None
        return found


def read_room(path: str) -> Room:
    """Waits for as long as the file system does."""
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
    """shared: the file system is the network's. That it is full is then no fault of this node's."""
    check = f"room:{room.path}"
    if room.waited:
        verdict = Verdict.MONITOR if room.waited >= limits.room_no_answer else Verdict.UNKNOWN
        return Finding(check, verdict, node, f"{room.path} has not answered for {room.waited:.0f} s")
    if room.used is None:
        return Finding(check, Verdict.UNKNOWN, node, f"{room.path}: {room.error or 'it tells no size'}")
    fullest = max(room.used, room.inodes or 0.0)
    inodes = "" if room.inodes is None else f", {room.inodes:.0%} of its inodes"
    said = f"{room.path}: {room.used:.0%} of its space{inodes} used, {room.free / 2**20:.0f} MiB free"
    if fullest >= limits.room_full and not shared:
        return Finding(check, Verdict.SUSPECT, node, said, Remedy.AVOID)
    if fullest >= limits.room_used:
        return Finding(check, Verdict.MONITOR, node, said, Remedy.SETUP if shared else Remedy.WATCH)
    return Finding(check, Verdict.PASS, node, said)
