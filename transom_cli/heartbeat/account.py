"""What a rank spends its steps on, as bytes behind its record in the same file: sums for each phase, and the last loss.

The trainer adds up; whoever wants to know what the last minute was spent on takes the difference of two readings. So
nothing is lost where nobody reads, and nothing is ever reset. The account is behind the record (`record.SIZE`), in two
slots of its own, written in turn as the record's are: a reader of before there were accounts reads the record alone.

It is written at a beat, and at most four times a second, as often as the node's agent looks: short steps share the
cost of a write. A phase costs two readings of the clock.
"""

from __future__ import annotations

import struct
from _thread import get_ident  # not threading, which takes longer than all of this
from time import monotonic_ns
from zlib import crc32

from transom_cli.heartbeat import phases
from transom_cli.heartbeat import record as rec

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Device(Protocol):
        """A clock that runs behind: it is told of a change at once, and tells later how long was spent before it."""

        def change(self, phase: int) -> None:
            """The phase that ends now."""

        def done(self) -> list[tuple[int, int]]:
            """(phase, ns) of what is known by now; never waits."""


OTHER, WAIT = phases.KNOWN.index(phases.OTHER), phases.KNOWN.index(phases.WAIT)
MOST = 16  # phases with names of their own included
NAME = 16  # bytes of a name
EVERY_NS = 250_000_000
HOST, DEVICE = 0, 1

# a slot: magic, number of phases, clock; their names; what moves; the sums in ns; the checksum over all that
_HEAD = struct.Struct("<4sBB2x")
_MOVING = struct.Struct("<QqQQqddd")  # seq, step, began, at (CLOCK_MONOTONIC, ns), loss step, loss, grad norm, scale
_CHECK = struct.Struct("<I")
_MAGIC = b"TBS1"
SLOT = 512
AT = rec.SIZE
SIZE = AT + 2 * SLOT


class Reading:
    """`ns`: sums by name. `at`: when the account was written; `began`: another value is another account, from zero.

    `loss`: of step `loss_step`; `grad_norm`, `scale`: of that or an earlier one. None where none was told.
    `device`: the sums are of an accelerator's time; then they may be a few steps behind `step`.
    """

    __slots__ = ("at", "began", "device", "grad_norm", "loss", "loss_step", "ns", "scale", "seq", "step")

    def __init__(self, seq: int, step: int, began: int, at: int) -> None:
        self.seq, self.step, self.began, self.at = seq, step, began, at
        self.loss_step, self.device = -1, False
        self.loss: float | None = None
        self.grad_norm: float | None = None
        self.scale: float | None = None
        self.ns: dict[str, int] = {}


class _Lost:
    """A device that answers no more."""

    def change(self, phase: int) -> None:
        pass

    def done(self) -> list[tuple[int, int]]:
        return []


class Account:
    """The writer. Only the thread that made it is timed: what another one does costs the step nothing by itself."""

    def __init__(self, buffer: Any, began: int) -> None:
        self._buffer = buffer
        self._thread = get_ident()
        self._names = list(phases.KNOWN)
        self._index = {name: i for i, name in enumerate(phases.KNOWN)}
        self._ns = [0] * len(phases.KNOWN)
        self._now = OTHER
        self._open: list[int] = []  # the phases around the present one
        self._began = self._mark = began
        self._due = 0
        self._seq = 0
        self._loss_step, self._losses = -1, (rec.NO_LOSS,) * 3
        self._device: Device | None = None
        self._lay_out()

    def enter(self, name: str) -> None:
        """What is spent from now on belongs to this phase, and no more to the one around it."""
        if get_ident() != self._thread:
            return
        index = self._index.get(name)
        self._open.append(self._now)
        self.change(self._add(name) if index is None else index)

    def leave(self) -> None:
        if get_ident() == self._thread and self._open:
            self.change(self._open.pop())

    def change(self, phase: int) -> int:
        """From any thread while the account's own is known to wait for it. Returns the phase that has ended."""
        former = self._now
        if self._device is None:
            now = monotonic_ns()
            self._ns[former] += now - self._mark
            self._mark = now
        else:
            self._on_device(self._device.change, former)
        self._now = phase
        return former

    def lost(self, step: int, loss: float, grad_norm: float | None, scale: float | None) -> None:
        """What was told at this step of how the training goes, as a record keeps a loss.

        None: not told, or not fetched from the device this time; the one before stands.
        """
        _, norm, before = self._losses
        norm = norm if grad_norm is None else grad_norm
        self._loss_step, self._losses = step, (loss, norm, before if scale is None else scale)

    def beat(self, step: int, now: int) -> None:
        if now < self._due or get_ident() != self._thread:
            return
        self._due = now + EVERY_NS
        self.change(self._now)
        if self._device is not None:
            for phase, ns in self._on_device(self._device.done) or ():
                self._ns[phase] += ns
        self._seq = seq = self._seq + 1
        moving = self._pack(seq, step, self._began, now, self._loss_step, *self._losses, *self._ns)
        at = AT + (seq & 1) * SLOT
        body = self._fixed + moving
        self._buffer[at : at + len(body) + _CHECK.size] = body + _CHECK.pack(crc32(body))

    def use(self, device: Device) -> None:
        """From now on the time is an accelerator's; the sums begin anew."""
        self._device = device
        self._ns = [0] * len(self._ns)
        self._began = monotonic_ns()
        self._lay_out()

    def disconnect(self) -> None:
        """In a forked child."""
        self._buffer, self._device = bytearray(SIZE), None

    def _on_device(self, ask: Callable[..., Any], *arguments: int) -> Any:
        """A device that is lost ends no training: from then on the sums stand still."""
        try:
            return ask(*arguments)
        except Exception:
            self._device = _Lost()

    def _add(self, name: str) -> int:
        """Names beyond the limit are one with what is in no phase; names that begin alike are one."""
        short = name.encode()[:NAME].decode(errors="ignore")
        index = self._index.get(short)
        if index is None:
            if len(self._names) >= MOST or not short:
                return OTHER
            index = len(self._names)
            self._names.append(short)
            self._ns.append(0)
            self._index[short] = index
            self._lay_out()
        if len(self._index) < 8 * MOST:  # long names that begin alike may be many
            self._index[name] = index
        return index

    def _lay_out(self) -> None:
        names = b"".join(name.encode().ljust(NAME, b"\0") for name in self._names)
        self._fixed = _HEAD.pack(_MAGIC, len(self._names), HOST if self._device is None else DEVICE) + names
        self._pack = struct.Struct(f"{_MOVING.format}{len(self._names)}Q").pack


def newest(data: bytes) -> Reading | None:
    """The newest whole account in a beat file's bytes; None when there is none, as in a file of an older trainer."""
    found = [reading for at in (AT, AT + SLOT) if (reading := _read(data[at : at + SLOT])) is not None]
    return max(found, key=lambda reading: reading.seq, default=None)


def _read(slot: bytes) -> Reading | None:
    if len(slot) < SLOT:
        return None
    magic, count, device = _HEAD.unpack_from(slot)
    if magic != _MAGIC or not len(phases.KNOWN) <= count <= MOST:
        return None
    sums = struct.Struct(f"<{count}Q")
    end = _HEAD.size + count * NAME + _MOVING.size + sums.size
    if _CHECK.unpack_from(slot, end)[0] != crc32(slot[:end]):
        return None
    seq, step, began, at, loss_step, loss, grad_norm, scale = _MOVING.unpack_from(slot, _HEAD.size + count * NAME)
    reading = Reading(seq, step, began, at)
    reading.loss_step, reading.device = loss_step, device == DEVICE
    reading.loss, reading.grad_norm, reading.scale = map(rec.loss_told, (loss, grad_norm, scale))
    names = (slot[_HEAD.size + i * NAME : _HEAD.size + (i + 1) * NAME] for i in range(count))
    told = [name.rstrip(b"\0").decode(errors="replace") for name in names]
    reading.ns = dict(zip(told, sums.unpack_from(slot, end - sums.size), strict=True))
    return reading
