"""A rank's record in the node's beats folder, mapped: where the rank's wrapper has put it, or torchrun's ranks put it.

A file is of one launch. A rank of an older one may live on with its mapping, and what it writes would spoil the
record; a newer one's is not for a rank of ours to touch.
"""

from __future__ import annotations

import mmap
import os
import time

from transom_cli.heartbeat import account
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.client import Opened, Writer


def start(folder: str, record: rec.Record) -> Opened | None:
    """None where the record is another's: a living process's, or a newer launch's."""
    fd = _open(f"{folder}/rank-{record.rank}", record)
    if fd is None:
        return None
    try:
        size = _with_account(fd)
        buffer = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    times = account.Account(buffer, time.monotonic_ns()) if size == account.SIZE else None
    writer = Writer(buffer, record, times)
    return writer, writer.finish


def _with_account(fd: int) -> int:
    """How many bytes of the file can be mapped: the wrapper has made the record alone, and the memory may be full."""
    try:
        room = os.pwrite(fd, bytes(account.SIZE - account.AT), account.AT) == account.SIZE - account.AT
    except OSError:
        room = False
    return account.SIZE if room else rec.SIZE


def _open(path: str, record: rec.Record) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # torchrun: the wrapper is around it, and does not know its ranks
        return rec.create(path, record)
    before = rec.read(fd)
    if before is not None and before.launch == record.launch and not _in_other_hands(before, record.pidns):
        record.seq, record.child = before.seq, before.child
        if not before.pid:  # the wrapper's own entry: the rank started when it did
            record.changed = before.changed
        return fd
    os.close(fd)
    return rec.create(path, record) if before is None or before.launch < record.launch else None


def _in_other_hands(before: rec.Record, namespace: int) -> bool:
    if before.pid in (0, os.getpid()) or before.pidns != namespace:
        return False
    try:
        os.kill(before.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
