"""The trainer's side of beats: `beat()` and `beat.phase()`. Standard library only; nothing here raises into a trainer.

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

from transom_cli.heartbeat import places
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.account import Account

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

    account: Account | None = None

    def beat(
        self, step: int, loss: Any, grad_norm: Any = None, loss_scale: Any = None, since_start: bool = False
    ) -> None:
        pass

    def enter(self, name: str) -> None:
        pass

    def leave(self, name: str) -> None:
        pass


class Writer(Sink):
    """Writes one rank's record into a buffer (a mapping of the beat file, or plain memory), and its account if any."""

    def __init__(self, buffer: Any, record: rec.Record, account: Account | None = None) -> None:
        self._buffer = buffer
        self._r = record
        self.account = account
        self._phases: list[int] = []  # open phase() blocks, of any thread, oldest first
        self._fetched, self._fetch_due = -1, 0
        self._fixed_crc = crc32(rec.fixed(record))
        for _ in range(2):  # both slots in full, one after the other: from now on only their moving part is written
            record.seq += 1
            at, data = rec.slot(record)
            buffer[at : at + len(data)] = data

    def beat(
        self, step: int, loss: Any, grad_norm: Any = None, loss_scale: Any = None, since_start: bool = False
    ) -> None:
        r = self._r
        now = monotonic_ns()
        r.since_start = since_start
        if step != r.step:
            r.step, r.changed = int(step), now
        if loss is not None:
            told = self._number(loss, now) if type(loss) is not float or loss != loss else loss
            if told is not None:  # else it was not fetched this time
                r.loss = told
                if self.account is not None:
                    norm = None if grad_norm is None else self._number(grad_norm, now)
                    scale = None if loss_scale is None else self._number(loss_scale, now)
                    self.account.lost(r.step, told, norm, scale)
        r.count += 1
        if r.count == 1 and places.WORLD_SIZE in os.environ:
            from transom_cli.heartbeat import world

            world.require_launched()
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
        """At interpreter exit. After an uncaught exception the phase stays what it was: that rank is not done."""
        if not hasattr(sys, "last_type"):
            self._r.phase = rec.DONE
            self._write()

    def disconnect(self) -> None:
        """In a forked child: what is still open here (an atexit call, a phase() block) must not reach the record."""
        self._buffer = bytearray(rec.SIZE)
        if self.account is not None:
            self.account.disconnect()

    def _number(self, value: Any, now: int) -> float | None:
        """A number or a one-element tensor, as `record` keeps a loss; None when it is none, or not fetched this time.

        What is told at one beat (the same `now`) is fetched together or not at all.
        """
        here = getattr(value, "is_cpu", None)  # torch; other libraries have a device that is called "cpu" or none
        if not (getattr(value, "device", "cpu") == "cpu" if here is None else here):
            if now < self._fetch_due and now != self._fetched:
                return None
            self._fetched, self._fetch_due = now, now + LOSS_EVERY_NS
        try:
            return rec.loss_kept(float(value.item() if hasattr(value, "item") else value))
        except Exception:
            return rec.NO_LOSS

    def _write(self) -> None:
        r = self._r
        r.seq = seq = r.seq + 1
        moving = _pack(seq, r.step, rec.counted(r), r.changed, r.loss, r.phase)
        at = _ODD if seq & 1 else _EVEN
        self._buffer[at : at + _LENGTH] = moving + _pack_check(crc32(moving, self._fixed_crc))


_CODES = {"checkpoint": rec.CHECKPOINT, "restore": rec.RESTORE}
"""Phases that the record tells of at once: they have longer limits of silence."""
_pack, _pack_check = rec.MOVING.pack, rec.CHECK.pack
_EVEN, _ODD, _LENGTH = rec.FIXED.size, rec.SLOT + rec.FIXED.size, rec.MOVING.size + rec.CHECK.size
_NOWHERE = Sink()
_sink: Sink | None = None  # None: not looked for yet
_explicit = False
_resumed_from = 0
_step_known = False  # a Checkpointer has told at which step the training began here


class phase:
    """Tell that this rank is busy with something while the block runs; may be nested; never raises.

    "checkpoint" and "restore" have a longer limit of silence. What a step is spent on is added up by name: "data",
    "forward", "backward", "optimizer", "wait" (for other ranks), these two, and eight names of your own; the time
    inside a nested phase is the inner one's alone. Only the thread of the first beat or phase is timed.
    """

    __slots__ = ("_entered", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered: Sink | None = None

    def __enter__(self) -> None:
        try:
            sink = _sink or _open()
            sink.enter(self._name)
            self._entered = sink
        except Exception:
            return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._entered is not None:
            try:
                self._entered.leave(self._name)
            except Exception:
                return


class Beat:
    """`beat(step, ...)`, and `beat.phase(name)`."""

    phase = phase

    def __call__(
        self,
        step: int,
        loss: float | None = None,
        grad_norm: float | None = None,
        loss_scale: float | None = None,
    ) -> None:
        """Tell that training step `step` is done. About a microsecond; does nothing outside transom; never raises.

        `loss`, and with it the norm of the gradients and the scale of the loss, may be floats or one-element tensors.
        A tensor on the CPU is read at once. Reading one on an accelerator waits until the device has computed it, so
        this is done at most once in 10 s; the steps between show the last value read. Pass nothing to never wait. The
        first call ends automatic beats in this process.
        """
        global _explicit
        _explicit = True
        try:
            (_sink or _open()).beat(step, loss, grad_norm, loss_scale)
        except Exception:
            return


beat = Beat()


def account() -> Account | None:
    """Of this rank, for the hooks that time it (beats.collectives); None where nobody reads one."""
    return (_sink or _open()).account


def automatic_beat(steps: int) -> None:
    """A beat on the trainer's behalf (heartbeat/auto), after so many optimizer steps of this process.

    Unless a Checkpointer has told the step (`resumed`), the beat is marked as counted since the start of the process.
    Ignored once the trainer has called `beat` itself.
    """
    if _explicit:
        return
    try:
        (_sink or _open()).beat(_resumed_from + steps, None, since_start=not _step_known)
    except Exception:
        return


def resumed(step: int) -> None:
    """Let automatic beats count from `step`, from which the training resumes: a Checkpointer knows it. 0: it begins."""
    global _resumed_from, _step_known
    _resumed_from, _step_known = step, True


def _open() -> Sink:
    """Find where beats go, once in the life of this process."""
    global _sink
    _sink = _NOWHERE
    try:
        found: tuple[Writer, Callable[[], None]] | None = None
        if os.environ.get(places.BEAT_DIR):
            from transom_cli.heartbeat import own_file, tracing

            tracing.allow()
            found = own_file.start(os.environ[places.BEAT_DIR], _fresh(places.own_launch()))
        elif os.environ.get(places.RUN_DIR) or os.environ.get(places.ATTEMPT_DIR):
            from transom_cli.heartbeat import own_table  # a thread and pathlib: only for those who need them

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
