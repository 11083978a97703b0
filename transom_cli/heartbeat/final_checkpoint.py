"""Requests for a final checkpoint: two kinds of files in node memory, between the node's agent and its ranks.

A final checkpoint is made at once instead of at the next scheduled save: before a time limit, on preemption, before
maintenance. All ranks must make it at the same step, without communicating.

    flush-<launch>          the request: a step. Written by the node's agent, mapped by every rank
    listen-<launch>-<rank>  the last step that the rank passed to save(). Written by that rank's Checkpointer

Both hold one number in two slots, written in turn, each with its checksum, as a heartbeat record does. A reader takes
the newer slot whose checksum matches: the other one is still being written. This makes requests safe: a rank reports
its step and reads the request after that; the agent writes the request and reads the steps after that. A rank that has
not been seen at or beyond the requested step has yet to read the request, and will find it.

A rank holds a record lock (fcntl) on its file while it listens. Such a lock ends with its process, is not inherited by
a forked child, and means the same in every PID namespace, which a PID does not.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from typing import Any, NamedTuple
from zlib import crc32

from transom_cli.heartbeat import paths

# ruff: noqa: PTH104, PTH108, PTH119, PTH208


NONE = -1  # no request; no step yet
END = (1 << 63) - 1  # the request to end at once: beyond every step, since a request only grows
FLUSH, LISTEN = b"TFO1", b"TFL1"

_HEAD = struct.Struct("<4siB7x")  # magic, PID of the rank (0: a request), whether the rank delays SIGTERM
_BODY = struct.Struct("<Qq")  # seq, step
_CHECK = struct.Struct("<I")
_LENGTH = _BODY.size + _CHECK.size
_SLOT = 24
KEEPS = 8  # offset of that byte
SLOTS = _HEAD.size
SIZE = SLOTS + 2 * _SLOT


class Listener(NamedTuple):
    """A rank that listens for requests. step: the last that it passed to save(); NONE: none yet."""

    rank: int
    pid: int  # as its own pid namespace numbers it
    keeps: bool  # it delays SIGTERM, for a request to arrive
    step: int


class Cell:
    """The writer of a file's number, through a mapping of the file."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._seq = 0

    def put(self, step: int) -> None:
        self._seq += 1
        at, data = slot(self._seq, step)
        self._buffer[at : at + len(data)] = data


def slot(seq: int, step: int) -> tuple[int, bytes]:
    """The offset of the slot in the file, and its bytes."""
    body = _BODY.pack(seq, step)
    return SLOTS + (seq & 1) * _SLOT, body + _CHECK.pack(crc32(body))


def newest(slots: bytes) -> tuple[int, int] | None:
    """(seq, step) of the newest whole slot in a file's bytes from SLOTS on; None if there is none."""
    best: tuple[int, int] | None = None
    for at in (0, _SLOT):
        body, check = slots[at : at + _BODY.size], slots[at + _BODY.size : at + _LENGTH]
        if len(check) == _CHECK.size and _CHECK.unpack(check)[0] == crc32(body):
            found: tuple[int, int] = _BODY.unpack(body)
            best = found if best is None or found[0] > best[0] else best
    return best


def open_order(beats_dir: str, launch: int, flags: int) -> int:
    """Open the launch's request on this node. The first user, agent or rank, creates the file.

    Raises OSError, and ValueError if the file is something else.
    """
    path = paths.request_file(beats_dir, launch)
    if not os.path.lexists(path):
        fd, temporary = _made(path, FLUSH, 0)
        os.close(fd)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if _content(fd, FLUSH) is None:
        os.close(fd)
        raise ValueError(f"{path} holds no request")
    return fd


def read(fd: int) -> tuple[int, int]:
    """(seq, step) of an open request. Raises ValueError if no slot is whole."""
    found = newest(os.pread(fd, SIZE, 0)[SLOTS:])
    if found is None:
        raise ValueError("no whole request")
    return found


def write(fd: int, seq: int, step: int) -> None:
    """Write with a system call, for rare writers. A rank writes through its mapping instead."""
    at, data = slot(seq, step)
    os.pwrite(fd, data, at)


def claim(beats_dir: str, launch: int, rank: int) -> int:
    """Start to listen as this rank. Returns the descriptor of its file, locked until this process closes it.

    Raises OSError; BlockingIOError if another living process listens as this rank.
    """
    path = paths.listen_prefix(beats_dir, launch) + str(rank)
    fd, temporary = _made(path, LISTEN, os.getpid())
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _listener(path, rank) is not None:
            raise BlockingIOError(f"another process listens as rank {rank}")
        os.rename(temporary, path)  # replaces the file of an earlier process of this rank
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    return fd


def listeners(beats_dir: str, launch: int) -> list[Listener]:
    """The ranks of the launch that listen on this node, by rank.

    Never call this in a rank: closing its own file would release its lock. Raises OSError.
    """
    named = re.compile(re.escape(os.path.basename(paths.listen_prefix("", launch))) + r"(\d{1,9})")
    found = (named.fullmatch(name) for name in os.listdir(beats_dir))
    found_listeners = (_listener(f"{beats_dir}/{match[0]}", int(match[1])) for match in found if match)
    return sorted(listener for listener in found_listeners if listener is not None)


def _listener(path: str, rank: int) -> Listener | None:
    """None if nobody listens there: no such file, one of another kind, or one that no process locks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = _content(fd, LISTEN)
        last = newest(data[SLOTS:]) if data is not None else None
        if data is None or last is None or not _locked(fd):
            return None
        _, pid, keeps = _HEAD.unpack_from(data)
        return Listener(rank, pid, bool(keeps), last[1])
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _content(fd: int, magic: bytes) -> bytes | None:
    """The file's bytes; None if it is not ours. It must have its full size: reading a mapped hole is a SIGBUS."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != SIZE:
        return None
    data = os.pread(fd, SIZE, 0)
    return data if data.startswith(magic) and newest(data[SLOTS:]) is not None else None


def _made(path: str, magic: bytes, pid: int) -> tuple[int, str]:
    """Create a temporary file for `path` (0600), all bytes written. Returns its descriptor and name."""
    temporary = (
        f"{path}.{os.urandom(4).hex()}.tmp"  # not the PID: containers that share this directory may have the same one
    )
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    image = bytearray(SIZE)
    image[:SLOTS] = _HEAD.pack(magic, pid, False)
    at, data = slot(0, NONE)
    image[at : at + len(data)] = data
    try:
        if os.pwrite(fd, image, 0) != SIZE:
            raise OSError(f"short write to {temporary}")
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    return fd, temporary
