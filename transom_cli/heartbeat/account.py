"""How a rank's step time splits into phases, as bytes behind its record in the same file; and the last loss.

The trainer only adds up: a reader takes the difference of two readings. So nothing is lost if nobody reads, and nothing
is ever reset. The account follows the record (`record.SIZE`), in two slots of its own that are written in turn, as the
record's are: a reader of an older version reads the record alone.

It is written at a heartbeat, at most four times a second, as often as the node's agent reads: short steps share the
cost of a write. A phase costs two readings of the clock.
"""

from __future__ import annotations

import struct
from _thread import get_ident  # not threading, which takes longer than all of this
from time import monotonic_ns
from zlib import crc32

from transom_cli.heartbeat import OTHER as OTHER_PHASE
from transom_cli.heartbeat import STEP_PHASES
from transom_cli.heartbeat import WAIT as WAIT_PHASE
from transom_cli.heartbeat import record as rec

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Device(Protocol):
        """A clock that runs behind: it records phase changes at once, and returns their durations later."""

        def change(self, phase: int) -> None:
            """The phase that ends now."""

        def done(self) -> list[tuple[int, int]]:
            """(phase, ns) of the durations known by now; never waits."""


OTHER, WAIT = STEP_PHASES.index(OTHER_PHASE), STEP_PHASES.index(WAIT_PHASE)
MOST = 16  # phases, including custom names
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
    """ns: sums by phase name. at: when the account was written. began: another value is another account, from zero.

    loss: of step `loss_step`; grad_norm, scale: of that or an earlier step. None if none was reported. device: the sums
    are an accelerator's time; they may be a few steps behind `step`.
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
    """A device that no longer answers."""

    def change(self, phase: int) -> None:
        pass

    def done(self) -> list[tuple[int, int]]:
        return []


class Account:
    """The writer. Times only the thread that made it: other threads do not lengthen a step by themselves."""

    def __init__(self, buffer: Any, began: int) -> None:
        self._buffer = buffer
        self._thread = get_ident()
        self._names = list(STEP_PHASES)
        self._index = {name: i for i, name in enumerate(STEP_PHASES)}
        self._ns = [0] * len(STEP_PHASES)
        self._now = OTHER
        self._open: list[int] = []  # the phases around the current one
        self._began = self._mark = began
        self._due = 0
        self._seq = 0
        self._loss_step, self._losses = -1, (rec.NO_LOSS,) * 3
        self._device: Device | None = None
        self._lay_out()

    def enter(self, name: str) -> None:
        """From now on time counts for this phase, not for the one around it."""
        if get_ident() != self._thread:
            return
        index = self._index.get(name)
        self._open.append(self._now)
        self.change(self._add(name) if index is None else index)

    def leave(self) -> None:
        if get_ident() == self._thread and self._open:
            self.change(self._open.pop())

    def change(self, phase: int) -> int:
        """Switch to `phase`. From any thread while the account's own waits for it. Returns the phase that ended."""
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
        """Record the loss of this step. None: not reported or not fetched from the device; the old value stays."""
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
        """Count an accelerator's time from now on; the sums restart at zero."""
        self._device = device
        self._ns = [0] * len(self._ns)
        self._began = monotonic_ns()
        self._lay_out()

    def disconnect(self) -> None:
        """In a forked child."""
        self._buffer, self._device = bytearray(SIZE), None

    def _on_device(self, ask: Callable[..., Any], *arguments: int) -> Any:
        """Call the device. If it is lost, training continues and the sums stop."""
        try:
            return ask(*arguments)
        except Exception:
            self._device = _Lost()

    def _add(self, name: str) -> int:
        """Add a phase. Names beyond the limit count as "other"; long names that begin alike count as one."""
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
    """The newest whole account in a beat file's bytes; None if there is none, as in a file of an older version."""
    found = [reading for at in (AT, AT + SLOT) if (reading := _read(data[at : at + SLOT])) is not None]
    return max(found, key=lambda reading: reading.seq, default=None)


def _read(slot: bytes) -> Reading | None:
    if len(slot) < SLOT:
        return None
    magic, count, device = _HEAD.unpack_from(slot)
    if magic != _MAGIC or not len(STEP_PHASES) <= count <= MOST:
        return None
    sums = struct.Struct(f"<{count}Q")
    end = _HEAD.size + count * NAME + _MOVING.size + sums.size
    if _CHECK.unpack_from(slot, end)[0] != crc32(slot[:end]):
        return None
    seq, step, began, at, loss_step, loss, grad_norm, scale = _MOVING.unpack_from(slot, _HEAD.size + count * NAME)
    reading = Reading(seq, step, began, at)
    reading.loss_step, reading.device = loss_step, device == DEVICE
    reading.loss, reading.grad_norm, reading.scale = map(rec.decode_loss, (loss, grad_norm, scale))
    names = (slot[_HEAD.size + i * NAME : _HEAD.size + (i + 1) * NAME] for i in range(count))
    labels = [name.rstrip(b"\0").decode(errors="replace") for name in names]
    reading.ns = dict(zip(labels, sums.unpack_from(slot, end - sums.size), strict=True))
    return reading
