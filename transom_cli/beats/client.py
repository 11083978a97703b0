"""The trainer's side of beats: `beat()` and `phase()`. Standard library only; nothing here ever raises into a trainer.

Where the record goes is found at the first beat:

- `TRANSOM_BEAT_DIR` is set (by the rank's wrapper): into the mapped file `rank-<RANK>` there, for the node's agent;
- only `TRANSOM_RUN_DIR` is set (an unmodified sbatch script: no wrapper and no agent): a daemon thread writes
  the rank's own table into the run directory, at most once a second;
- neither: nowhere, and a call costs what an empty function costs.

One process beats for a rank. A forked child (a DataLoader worker) never beats for its parent, and a process that finds
the record in the hands of another living process leaves it alone.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from time import monotonic_ns
from zlib import crc32

from transom_cli.beats import places
from transom_cli.beats import record as rec

TYPE_CHECKING = False  # as typing has it, without 7 ms for its import in every rank's wrapper
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

LOSS_EVERY_NS = 10_000_000_000
"""A loss that lives on an accelerator is fetched at most this often: fetching waits for the device."""


Opened = tuple["Writer", Callable[[], None]]
"""A writer, and what is to be called when the interpreter exits."""


class Sink:
    """Where beats go; as it stands, nowhere: outside transom, in a forked child, or without a record."""

    def beat(self, step: int, loss: Any) -> None:
        pass

    def enter(self, phase: int) -> None:
        pass

    def leave(self, phase: int) -> None:
        pass


class Writer(Sink):
    """Writes one rank's record into a buffer (a mapping of the beat file, or plain memory)."""

    def __init__(self, buffer: Any, record: rec.Record) -> None:
        self._buffer = buffer
        self._r = record
        self._phases: list[int] = []  # open phase() blocks, of any thread, oldest first
        self._loss_due = 0
        self._fixed_crc = crc32(rec.fixed(record))
        for _ in range(2):  # both slots in full, one after the other: from now on only their moving part is written
            record.seq += 1
            at, data = rec.slot(record)
            buffer[at : at + len(data)] = data

    def beat(self, step: int, loss: Any) -> None:
        r = self._r
        now = monotonic_ns()
        if loss is not None:
            r.loss = loss if type(loss) is float else self._number(loss, now)
        if step != r.step:
            r.step, r.changed = int(step), now
        r.count += 1
        if r.phase == rec.START and not self._phases:
            r.phase = rec.STEP
        self._write()

    def enter(self, phase: int) -> None:
        self._phases.append(phase)
        self._r.phase = phase
        self._write()

    def leave(self, phase: int) -> None:
        self._phases.remove(phase)
        base = rec.STEP if self._r.count else rec.START
        self._r.phase = self._phases[-1] if self._phases else base
        self._write()

    def finish(self) -> None:
        """At interpreter exit. After an uncaught exception the phase stays what it was: that rank is not done."""
        if not hasattr(sys, "last_type"):
            self._r.phase = rec.DONE
            self._write()

    def disconnect(self) -> None:
        """In a forked child: what is still open here (an atexit call, a phase() block) must not reach the record."""
        self._buffer = bytearray(rec.SIZE)

    def _number(self, loss: Any, now: int) -> float:
        """A number or a one-element tensor as a float; the former loss when it is not fetched this time."""
        here = getattr(loss, "is_cpu", None)  # torch; other libraries have a device that is called "cpu" or none
        if not (getattr(loss, "device", "cpu") == "cpu" if here is None else here):
            if now < self._loss_due:
                return self._r.loss
            self._loss_due = now + LOSS_EVERY_NS
        try:
            return float(loss.item() if hasattr(loss, "item") else loss)
        except Exception:
            return rec.NO_LOSS

    def _write(self) -> None:
        r = self._r
        r.seq = seq = r.seq + 1
        moving = _pack(seq, r.step, r.count, r.changed, r.loss, r.phase)
        at = _ODD if seq & 1 else _EVEN
        self._buffer[at : at + _LENGTH] = moving + _pack_check(crc32(moving, self._fixed_crc))


_pack, _pack_check = rec.MOVING.pack, rec.CHECK.pack
_EVEN, _ODD, _LENGTH = rec.FIXED.size, rec.SLOT + rec.FIXED.size, rec.MOVING.size + rec.CHECK.size
_NOWHERE = Sink()
_sink: Sink | None = None  # None: not looked for yet
_explicit = False
_resumed_from = 0


def beat(step: int, loss: float | None = None) -> None:
    """Tell that training step `step` is done. About a microsecond; does nothing outside transom; never raises.

    `loss` may be a float or a one-element tensor. A tensor on the CPU is read at once. Reading one on an accelerator
    waits until the device has computed it, so this is done at most once in 10 s; the steps between show the last value
    read. Pass nothing to never wait. The first call ends automatic beats in this process.
    """
    global _explicit
    _explicit = True
    try:
        (_sink or _open()).beat(step, loss)
    except Exception:
        return


def automatic_beat(steps: int) -> None:
    """A beat on the trainer's behalf (beats/auto), after so many optimizer steps of this process.

    Ignored once the trainer has called `beat` itself.
    """
    if _explicit:
        return
    try:
        (_sink or _open()).beat(_resumed_from + steps, None)
    except Exception:
        return


def resumed(step: int) -> None:
    """The training goes on from `step` (a Checkpointer says so): automatic beats count from there."""
    global _resumed_from
    _resumed_from = step


class phase:
    """Tell that this rank is busy with "checkpoint" or "restore" while the block runs; may be nested; never raises.

    A phase has its own, longer limit of silence. Any other name changes nothing.
    """

    _CODES = {"checkpoint": rec.CHECKPOINT, "restore": rec.RESTORE}  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self._code = self._CODES.get(name)
        self._entered: Sink | None = None

    def __enter__(self) -> None:
        if self._code is not None:
            try:
                sink = _sink or _open()
                sink.enter(self._code)
                self._entered = sink
            except Exception:
                return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._entered is not None and self._code is not None:
            try:
                self._entered.leave(self._code)
            except Exception:
                return


def _open() -> Sink:
    """Find where beats go, once in the life of this process."""
    global _sink
    _sink = _NOWHERE
    try:
        found: tuple[Writer, Callable[[], None]] | None = None
        if os.environ.get(places.BEAT_DIR):
            from transom_cli.beats import own_file, tracing

            tracing.allow()
            found = own_file.start(os.environ[places.BEAT_DIR], _fresh(places.own_launch()))
        elif os.environ.get(places.RUN_DIR) or os.environ.get(places.ATTEMPT_DIR):
            from transom_cli.beats import own_table  # a thread and pathlib: only for those who need them

            found = own_table.start(_fresh(0))
        if found is not None:
            writer, at_exit = found
            atexit.register(at_exit)
            os.register_at_fork(after_in_child=_forget(writer, at_exit))
            _sink = writer
    except Exception:
        _sink = _NOWHERE
    return _sink


def _forget(writer: Writer, at_exit: Callable[[], None]) -> Callable[[], None]:
    """What a forked child does first: the record belongs to its parent."""

    def forget() -> None:
        global _sink
        _sink = _NOWHERE
        writer.disconnect()
        atexit.unregister(at_exit)

    return forget


def _fresh(launch: int) -> rec.Record:
    record = rec.Record(places.own_rank(), launch, monotonic_ns())
    record.pid, record.pidns = os.getpid(), rec.pid_namespace()
    return record
