"""What the answers of a node's file systems tell of it. Pure.

A folder that one node cannot use, while others can, speaks against that node: SUSPECT. Whether others can is not seen
from here: `shared.shared_trouble` compares the nodes, by the names of the checks, which are the same on all of them.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.mounts import LOCAL, SHM, MountsReading, Place
from transom_cli.health.room import RoomLimits, judge_room

FINDINGS = ("mount", "write", "room", "shm")
"""Each but the last is followed by a path: "mount:/shared/run"."""

_BEFORE_WRITING = ("stat", "statvfs")
_STICKY = 0o1777


@dataclass(frozen=True)
class MountsLimits(RoomLimits):
    """mount_slow, mount_hung: seconds for all that one path is asked; a reading waits 10 s, so that with more for the
    second none hangs. No source for the first; NVRx gives a path 15 s, where nothing else waits for it.

    shm_size: bytes; no source: containers come with 64 MiB, in which NCCL and data loaders die with "bus error".
    """

    mount_slow: float = 2.0
    mount_hung: float = 10.0
    shm_size: int = 1 << 30


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


def overdue(node: str, waited: float, about: About) -> Finding:
    """Each path has a deadline of its own within that time: this is no file system that hangs."""
    return Finding("mounts", Verdict.UNKNOWN, node, f"asking the file systems has not ended within {waited:.0f} s")


def _judge_mount(node: str, place: Place, limits: MountsLimits) -> Finding:
    check = f"mount:{place.path}"
    if place.at in _BEFORE_WRITING:
        return _trouble(check, node, place, limits)
    said = f"{place.path} answers ({place.mount})"
    if not place.hangs and place.waited >= limits.mount_slow:
        return Finding(check, Verdict.MONITOR, node, f"{said}, it took {place.waited:.1f} s", Remedy.WATCH)
    return Finding(check, Verdict.PASS, node, said)


def _judge_write(node: str, place: Place, limits: MountsLimits) -> Finding:
    check = f"write:{place.path}"
    if place.at in _BEFORE_WRITING:
        return Finding(check, Verdict.UNKNOWN, node, f"{place.path}: not tried, since it did not answer")
    if place.at:
        return _trouble(check, node, place, limits)
    said = f"a file was made in {place.path}, flushed, read back and removed in {place.waited:.2f} s"
    return Finding(check, Verdict.PASS, node, said)


def _trouble(check: str, node: str, place: Place, limits: MountsLimits) -> Finding:
    where = f" ({place.mount})" if place.mount else ""
    if place.hangs:
        said = f"{place.path}{where}: `{place.at}` has not been answered for {place.waited:.1f} s"
        hung = place.waited >= limits.mount_hung
        return Finding(check, Verdict.SUSPECT if hung else Verdict.MONITOR, node, said, Remedy.AVOID)
    said = f"{place.path}{where}: `{place.at}` failed: {place.error}"
    if place.no_room and place.network:  # full for every node
        return Finding(check, Verdict.MONITOR, node, said, Remedy.SETUP)
    return Finding(check, Verdict.SUSPECT, node, said, Remedy.AVOID)


def _judge_shm(node: str, place: Place, limits: MountsLimits) -> Finding:
    if place.at:
        return _trouble("shm", node, place, limits)
    mode = stat.S_IMODE(place.mode or 0)
    size = place.room.size if place.room else 0
    said = f"{SHM} has {size / 2**20:.0f} MiB, mode {mode:04o}"
    if mode != _STICKY:
        return Finding("shm", Verdict.MONITOR, node, f"{said} instead of 1777", Remedy.SETUP)
    if size < limits.shm_size:
        return Finding("shm", Verdict.MONITOR, node, f"{said}: little for NCCL and data loaders", Remedy.SETUP)
    return Finding("shm", Verdict.PASS, node, said)
