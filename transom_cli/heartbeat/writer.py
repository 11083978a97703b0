"""The writer of a rank's record: into the beat file that the node's agent reads, or into plain memory.

A beat file belongs to one launch. A rank of an older launch may still live with its mapping, so its writes must not
reach the record; and a rank of ours must not touch the record of a newer launch. This module imports little, since
every process of a job that imports torch pays for it.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from time import monotonic_ns
from zlib import crc32

from transom_cli.heartbeat import account as accounts
from transom_cli.heartbeat import paths
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.account import Account

TYPE_CHECKING = False  # as typing has it, without 7 ms for its import in every rank's wrapper
if TYPE_CHECKING:
    from typing import Any

LOSS_EVERY_NS = 10_000_000_000
"""A loss on an accelerator is fetched at most this often: fetching waits for the device."""


Opened = tuple["Writer", Callable[[], None]]
"""A writer, and what to call when the interpreter exits."""


class Sink:
    """Where heartbeats go. The base class drops them: outside transom, in a forked child, or without a record."""

    account: Account | None = None

    def beat(
        self, step: int, loss: Any, grad_norm: Any = None, loss_scale: Any = None, since_start: bool = False
    ) -> None:
        pass

    def enter(self, name: str) -> None:
        pass

    def leave(self, name: str) -> None:
        pass

    def reenter(self, launch: int) -> None:
        pass


class Writer(Sink):
    """Writes one rank's record into a buffer (the mapped beat file, or plain memory), and its account if any."""

    def __init__(self, buffer: Any, record: rec.Record, account: Account | None = None) -> None:
        self._buffer = buffer
        self._r = record
        self.account = account
        self._phases: list[int] = []  # open phase() blocks, of any thread, oldest first
        self._fetched, self._fetch_due = -1, 0
        self._fill()

    def _fill(self) -> None:
        """Write both slots. From now on only their moving part is written."""
        record = self._r
        self._fixed_crc = crc32(rec.fixed(record))
        for _ in range(2):
            record.seq += 1
            at, data = rec.slot(record)
            self._buffer[at : at + len(data)] = data

    def reenter(self, launch: int) -> None:
        """Begin the record of another launch: this process has made no step of it."""
        r = self._r
        r.launch, r.step, r.count, r.loss, r.phase, r.changed = launch, -1, 0, rec.NO_LOSS, rec.START, monotonic_ns()
        r.since_start = False
        self._phases.clear()
        self._fill()

    def beat(
        self, step: int, loss: Any, grad_norm: Any = None, loss_scale: Any = None, since_start: bool = False
    ) -> None:
        r = self._r
        now = monotonic_ns()
        r.since_start = since_start
        if step != r.step:
            r.step, r.changed = int(step), now
        if loss is not None:
            number = self._number(loss, now) if type(loss) is not float or loss != loss else loss
            if number is not None:  # otherwise it was not fetched this time
                r.loss = number
                if self.account is not None:
                    norm = None if grad_norm is None else self._number(grad_norm, now)
                    scale = None if loss_scale is None else self._number(loss_scale, now)
                    self.account.lost(r.step, number, norm, scale)
        r.count += 1
        if r.count == 1 and paths.WORLD_SIZE in os.environ:
            from transom_cli.heartbeat import world_size

            world_size.require_launched()
        if r.phase == rec.START and not self._phases:
            r.phase = rec.STEP
        self._write()
        if self.account is not None:
            self.account.beat(r.step, now)

    def enter(self, name: str) -> None:
        phase = _CODES.get(name)
        if phase is not None:
            self._phases.append(phase)
            self._r.phase = phase
            self._write()
        if self.account is not None:
            self.account.enter(name)

    def leave(self, name: str) -> None:
        if self.account is not None:
            self.account.leave()
        phase = _CODES.get(name)
        if phase is not None:
            self._phases.remove(phase)
            base = rec.STEP if self._r.count else rec.START
            self._r.phase = self._phases[-1] if self._phases else base
            self._write()

    def finish(self) -> None:
        """At interpreter exit. After an uncaught exception the phase stays as it was: that rank is not done."""
        if not hasattr(sys, "last_type"):
            self._r.phase = rec.DONE
            self._write()

    def disconnect(self) -> None:
        """In a forked child: open phase() blocks and atexit calls must not reach the record."""
        self._buffer = bytearray(rec.SIZE)
        if self.account is not None:
            self.account.disconnect()

    def _number(self, value: Any, now: int) -> float | None:
        """Convert a number or a one-element tensor to what `record` stores; None if it was not fetched this time.

        Values of one beat (the same `now`) are fetched together or not at all.
        """
        here = getattr(value, "is_cpu", None)  # torch; other libraries have a device named "cpu", or none
        if not (getattr(value, "device", "cpu") == "cpu" if here is None else here):
            if now < self._fetch_due and now != self._fetched:
                return None
            self._fetched, self._fetch_due = now, now + LOSS_EVERY_NS
        try:
            return rec.encode_loss(float(value.item() if hasattr(value, "item") else value))
        except Exception:
            return rec.NO_LOSS

    def _write(self) -> None:
        r = self._r
        r.seq = seq = r.seq + 1
        moving = _pack(seq, r.step, rec.counted(r), r.changed, r.loss, r.phase)
        at = _ODD if seq & 1 else _EVEN
        self._buffer[at : at + _LENGTH] = moving + _pack_check(crc32(moving, self._fixed_crc))


_CODES = {"checkpoint": rec.CHECKPOINT, "restore": rec.RESTORE}
"""Phases that are written to the record at once: ranks may be silent for longer in them."""
_pack, _pack_check = rec.MOVING.pack, rec.CHECK.pack
_EVEN, _ODD, _LENGTH = rec.FIXED.size, rec.SLOT + rec.FIXED.size, rec.MOVING.size + rec.CHECK.size


def open_record(folder: str, record: rec.Record) -> Opened | None:
    """Open this rank's beat file. None if the record belongs to another living process, or a newer launch."""
    fd = _open_file(f"{folder}/rank-{record.rank}", record)
    if fd is None:
        return None
    try:
        size = _with_account(fd)
        buffer = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    times = Account(buffer, monotonic_ns()) if size == accounts.SIZE else None
    writer = Writer(buffer, record, times)
    return writer, writer.finish


def _with_account(fd: int) -> int:
    """Add room for the account, if memory allows: the wrapper makes the record only. Returns the bytes to map."""
    try:
        room = os.pwrite(fd, bytes(accounts.SIZE - accounts.AT), accounts.AT) == accounts.SIZE - accounts.AT
    except OSError:
        room = False
    return accounts.SIZE if room else rec.SIZE


def _open_file(path: str, record: rec.Record) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # torchrun: the wrapper runs torchrun, and does not know its ranks
        return rec.create(path, record)
    before = rec.read(fd)
    if before is not None and before.launch == record.launch and not _in_other_hands(before, record.pidns):
        record.seq, record.child = before.seq, before.child
        if not before.pid:  # the wrapper's entry: the rank started with it
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
