"""One rank's progress as bytes in node memory: written by the trainer in about a microsecond, read by the agent.

The file holds one record in two slots, written in turn, each with its checksum. A reader takes the newer slot whose
checksum matches. A writer that is stopped or killed during a write spoils only the slot that it was writing, and the
previous record stays readable; a plain sequence lock would stay locked at the very moment that matters. The format also
needs no guarantees about memory order.
"""
# pathlib and contextlib would double the start-up time of every rank's wrapper
# ruff: noqa: PTH104, PTH108, PTH116

from __future__ import annotations

import os
import struct
from zlib import crc32

PHASES = ("start", "step", "checkpoint", "restore", "done")
START, STEP, CHECKPOINT, RESTORE, DONE = range(len(PHASES))

# a slot: what stays the same while a process writes, what each beat changes, the checksum over both
FIXED = struct.Struct("<4siiiiQ")  # magic, rank, launch, pid, child, pidns
MOVING = struct.Struct("<QqQQdi")  # seq, step, count, changed (CLOCK_MONOTONIC, ns), loss (see below), phase
CHECK = struct.Struct("<I")
BODY = FIXED.size + MOVING.size
MAGIC = b"TBR1"
SLOT = 96
SIZE = 2 * SLOT
SINCE_START = 1 << 63
"""The top bit of a beat count, here and in a table: steps are counted since this process started. They are not the
training's step numbers. Writers without this bit report the training's step."""
_LOSS, _BITS = struct.Struct("<d"), struct.Struct("<Q")
_NONE, _NAN = 0x7FF8_0000_0000_0000, 0x7FF8_0000_0000_0001
NO_LOSS: float = _LOSS.unpack(_BITS.pack(_NONE))[0]
NAN_LOSS: float = _LOSS.unpack(_BITS.pack(_NAN))[0]
"""Two of the many NaN bit patterns: no loss was reported; the reported loss is NaN."""


def decode_loss(loss: float) -> float | None:
    """The loss of a record or a table; None if none was reported, NaN if the reported loss is NaN."""
    return None if loss != loss and _BITS.unpack(_LOSS.pack(loss))[0] != _NAN else loss


def encode_loss(loss: float | None) -> float:
    """The inverse of `decode_loss`, for any NaN."""
    return NO_LOSS if loss is None else NAN_LOSS if loss != loss else loss


class Record:
    """A rank's progress. Written by the wrapper before exec and after exit, and by the trainer.

    changed: CLOCK_MONOTONIC (ns, the same for the whole node) at the last change of `step`, or at the start. pid: the
    process that reports, in its own PID namespace (`pidns`, an inode); 0: none yet. child: the process that the wrapper
    started, as the node numbers it; 0: no wrapper. since_start: `step` counts steps since this process started.
    """

    __slots__ = (
        "changed", "child", "count", "launch", "loss", "phase", "pid", "pidns", "rank", "seq", "since_start", "step",
    )  # fmt: skip

    def __init__(self, rank: int, launch: int, changed: int, child: int = 0) -> None:
        self.rank, self.launch, self.changed, self.child = rank, launch, changed, child
        self.seq, self.step, self.count, self.loss, self.phase = 0, -1, 0, NO_LOSS, START
        self.pid, self.pidns = 0, 0
        self.since_start = False


def slot(record: Record) -> tuple[int, bytes]:
    """The offset of the slot in the file, and its bytes."""
    r = record
    body = fixed(r) + MOVING.pack(r.seq, r.step, counted(r), r.changed, r.loss, r.phase)
    return (r.seq & 1) * SLOT, body + CHECK.pack(crc32(body))


def counted(record: Record) -> int:
    """The number of beats, with the bit that says what steps count."""
    return record.count | SINCE_START if record.since_start else record.count


def fixed(record: Record) -> bytes:
    """The part of a slot that does not change while one process writes."""
    r = record
    return FIXED.pack(MAGIC, r.rank, r.launch, r.pid, r.child, r.pidns)


def newest(data: bytes) -> Record | None:
    """The newest whole record in the file's bytes; None if there is none (no beat file, or both slots spoilt)."""
    best: Record | None = None
    for at in (0, SLOT):
        body = data[at : at + BODY]
        check = data[at + BODY : at + BODY + CHECK.size]
        if len(check) != CHECK.size or CHECK.unpack(check)[0] != crc32(body):
            continue
        magic, rank, launch, pid, child, pidns = FIXED.unpack_from(body)
        seq, step, count, changed, loss, phase = MOVING.unpack_from(body, FIXED.size)
        if magic != MAGIC or not 0 <= phase < len(PHASES) or (best is not None and best.seq > seq):
            continue
        best = Record(rank, launch, changed, child)
        best.seq, best.step, best.count, best.loss, best.phase = seq, step, count & ~SINCE_START, loss, phase
        best.since_start = bool(count & SINCE_START)
        best.pid, best.pidns = pid, pidns
    return best


def read(fd: int) -> Record | None:
    return newest(os.pread(fd, SIZE, 0))


def look(path: str) -> Record | None:
    """The record in a beat file; None also if the file is missing or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return read(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def write(fd: int, record: Record) -> None:
    """Write with a system call, for rare writers. The trainer writes through its mapping instead."""
    at, data = slot(record)
    os.pwrite(fd, data, at)


def create(path: str, record: Record) -> int:
    """Create a beat file (0600) in place of an earlier launch's. Returns it open for reading and writing.

    A living rank of that launch keeps writing to its own mapping, which nobody reads any more. All bytes are written: a
    hole in a full memory file system is a SIGBUS for a process that maps it.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        at, data = slot(record)
        image = bytearray(SIZE)
        image[at : at + len(data)] = data
        if os.pwrite(fd, image, 0) != SIZE:
            raise OSError(f"short write to {temporary}")
        os.rename(temporary, path)
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    return fd


def pid_namespace() -> int:
    """Inode of the caller's PID namespace (0: unknown): in different ones the same PID means different processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
