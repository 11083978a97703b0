"""The trainer's side of heartbeats: `beat()` and `beat.phase()`. Standard library only; never raises into a trainer.

The first call finds where the record goes:

- TRANSOM_BEAT_DIR is set (by the rank's wrapper): into the mapped file `rank-<RANK>` there, for the node's agent;
- only TRANSOM_RUN_DIR is set (an unmodified sbatch script, without wrapper and agent): a daemon thread writes the
  rank's own table to the run directory, at most once a second;
- neither: nowhere, and a call costs no more than an empty function.

One process reports for a rank. A forked child (a DataLoader worker) never reports for its parent, and a process that
finds the record in use by another living process leaves it alone.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from time import monotonic_ns

from transom_cli.heartbeat import paths
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.account import Account
from transom_cli.heartbeat.writer import Sink, Writer, open_record

TYPE_CHECKING = False  # as typing has it, without 7 ms for its import in every rank's wrapper
if TYPE_CHECKING:
    from types import TracebackType

_NOWHERE = Sink()
_sink: Sink | None = None  # None: not opened yet
_explicit = False
_resumed_from = 0
_last_step = -1
_automatic = _automatic_before = 0  # automatic steps of this process, and those before its present launch
_step_known = False  # a Checkpointer has set the step at which training began here


class phase:
    """Report what this rank is busy with while the block runs. May be nested; never raises.

    The time of each step is added up by phase. Time inside a nested phase counts for the inner one only. Only the
    thread of the first beat or phase is timed.

    Args:
        name: "data", "forward", "backward", "optimizer", "wait" (for other ranks), "checkpoint", "restore", or one of
            up to eight names of your own. In "checkpoint" and "restore" a rank may be silent for longer.
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
    """The type of `beat`: call `beat(step, ...)`, or use `with beat.phase(name)`."""

    phase = phase

    def __call__(
        self, step: int, loss: float | None = None, grad_norm: float | None = None, loss_scale: float | None = None
    ) -> None:
        """Report that a training step is done. Takes about a microsecond; does nothing outside transom; never raises.

        The first call ends automatic heartbeats in this process.

        Args:
            step: the number of the finished step.
            loss: a float or a one-element tensor. A CPU tensor is read at once. Reading a tensor on an accelerator
                waits for the device, so this happens at most once in 10 s; steps in between show the last value. Omit
                it to never wait.
            grad_norm: the norm of the gradients; read together with the loss.
            loss_scale: the scale of the loss in mixed precision; read together with the loss.
        """
        global _explicit, _last_step
        _explicit, _last_step = True, step
        try:
            (_sink or _open()).beat(step, loss, grad_norm, loss_scale)
        except Exception:
            return


beat = Beat()


def account() -> Account | None:
    """This rank's account, for hooks that time it (heartbeat.collectives); None if nobody reads one."""
    return (_sink or _open()).account


def automatic_beat(steps: int) -> None:
    """Report on the trainer's behalf (heartbeat/auto), after `steps` optimizer steps of this process.

    Unless a Checkpointer has set the step (`resumed`), the record says that steps count from the start of the process.
    Ignored once the trainer has called `beat` itself.
    """
    global _automatic
    if _explicit:
        return
    try:
        _automatic = steps
        (_sink or _open()).beat(_resumed_from + steps - _automatic_before, None, since_start=not _step_known)
    except Exception:
        return


def resumed(step: int) -> None:
    """Let automatic heartbeats count from `step`, where training resumes; 0: it begins. Called by a Checkpointer."""
    global _resumed_from, _step_known
    _resumed_from, _step_known = step, True


def reentered(launch: int) -> None:
    """This process is a rank of another launch now (integrations.recoverable)."""
    global _resumed_from, _last_step, _step_known, _automatic_before
    _resumed_from, _last_step, _step_known, _automatic_before = 0, -1, False, _automatic
    try:
        (_sink or _open()).reenter(launch)
    except Exception:
        return


def known_step() -> int:
    """The newest step that the trainer has reported, or at which a Checkpointer has resumed; 0 for none."""
    return max(_last_step, _resumed_from)


def _open() -> Sink:
    """Find where the record goes, once per process."""
    global _sink
    paths.await_rank("the first heartbeat")
    _sink = _NOWHERE
    try:
        found: tuple[Writer, Callable[[], None]] | None = None
        if os.environ.get(paths.BEAT_DIR):
            from transom_cli.heartbeat import tracing

            tracing.allow()
            paths.require_place(os.environ[paths.BEAT_DIR], os.environ.get(paths.BEAT_PLACE, ""))
            found = open_record(os.environ[paths.BEAT_DIR], _fresh(paths.own_launch()))
        elif os.environ.get(paths.RUN_DIR) or os.environ.get(paths.ATTEMPT_DIR):
            from transom_cli.heartbeat import local_table  # imports threading and pathlib, which few ranks need

            found = local_table.start(_fresh(0))
        if found is not None:
            writer, at_exit = found
            atexit.register(at_exit)
            os.register_at_fork(after_in_child=_forget(writer, at_exit))
            _sink = writer
    except Exception as error:
        _sink = _NOWHERE
        paths.say_blind(error)
    return _sink


def _forget(writer: Writer, at_exit: Callable[[], None]) -> Callable[[], None]:
    """Return what a forked child does first: the record belongs to its parent."""

    def forget() -> None:
        global _sink
        _sink = _NOWHERE
        writer.disconnect()
        atexit.unregister(at_exit)

    return forget


def _fresh(launch: int) -> rec.Record:
    record = rec.Record(paths.own_rank(), launch, monotonic_ns())
    record.pid, record.pidns = os.getpid(), rec.pid_namespace()
    return record
