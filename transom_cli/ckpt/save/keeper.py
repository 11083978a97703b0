"""A process that lives on after TERM for as long as a flush may need, and no longer.

Slurm sends TERM on preemption, at the time limit, on cancel and requeue, and KILL 30 s later (KillWait). The launcher
uses that time to order one more checkpoint, which needs the ranks alive. A rank that nobody orders anything must not
hold up its node: it dies of that TERM, a few seconds late.

Training goes on meanwhile, and may be anywhere: a main thread that waits in a collective runs no Python handler. So
the signal is taken by the interpreter's C handler, which writes to a pipe (signal.set_wakeup_fd), and a thread
that reads it decides. It needs the GIL: a process stuck with it held is left to KILL.

Nobody else's arrangements are touched: with a handler of the trainer's own, or a wakeup descriptor in use (asyncio),
nothing is kept. A forked child has the default back before a signal can reach it; a new program has it from exec.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from transom_cli.heartbeat.flush import END

ORDER_WAIT = 4.0  # seconds after TERM for an order to come
KEEP = 25.0  # seconds after TERM at most with one: within KillWait
LOOK = 0.05  # seconds between two looks at the order


class Keeper:
    """`order` reads the order that stands; `pending` tells whether one is still to be carried out or being so."""

    def __init__(self, order: Callable[[], int], pending: Callable[[], bool]) -> None:
        self._order, self._pending = order, pending
        self._given_up = False
        self._heard, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        threading.Thread(target=self._watch, name="transom-term", daemon=True).start()
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._noted)
        signal.siginterrupt(signal.SIGTERM, False)  # native calls of the training are not disturbed

    def stop(self) -> None:
        """Give the default back. A TERM that has come is not forgotten: the process still dies of it."""
        if threading.current_thread() is not threading.main_thread():
            self._given_up = True  # only the main thread may touch handlers: the watcher acts at once from now on
            return
        self._restore()
        tell, self._tell = self._tell, -1
        os.write(tell, b"\0")
        os.close(tell)

    def abandon(self) -> None:
        """In a forked child: its parent's watcher must not hear the child's signals."""
        self._restore()
        os.close(self._heard)
        os.close(self._tell)

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._noted:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        former = signal.set_wakeup_fd(-1)
        if former not in (-1, self._tell):
            signal.set_wakeup_fd(former)

    def _noted(self, number: int, frame: Any) -> None:
        """For when somebody has taken the wakeup descriptor since; otherwise the watcher knows already."""
        with contextlib.suppress(OSError):  # full: it will look; closed: a handler of the trainer's own calls us yet
            os.write(self._tell, bytes((number,)))

    def _watch(self) -> None:
        while data := os.read(self._heard, 64):
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) in (self._noted, signal.SIG_DFL):
                self._wait()
                _die()
            if 0 in data:
                break
        os.close(self._heard)

    def _wait(self) -> None:
        """Return when the process is to die."""
        begun, before = time.monotonic(), self._order()
        until = begun + ORDER_WAIT
        while time.monotonic() < until:
            order = self._order()
            if order == END or self._given_up:
                return
            if order != before or self._pending():
                until = begun + KEEP
            time.sleep(LOOK)


_kept: Keeper | None = None
_hooked = False
_forking = threading.local()


def keep(order: Callable[[], int], pending: Callable[[], bool]) -> Keeper | None:
    """Keep this process through TERM until `stop()`. None where that is not ours to do."""
    global _kept, _hooked
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    in_use = signal.set_wakeup_fd(-1)
    if in_use != -1:
        signal.set_wakeup_fd(in_use)
        return None
    _kept = Keeper(order, pending)
    if not _hooked:
        _hooked = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
        atexit.register(_at_exit)
    return _kept


def release(keeper: Keeper) -> None:
    global _kept
    keeper.stop()
    _kept = None


def _at_exit() -> None:
    """An interpreter that hangs on its way out (a driver's destructor) has no watcher any more."""
    if _kept is not None:
        release(_kept)


def _before_fork() -> None:
    """A TERM to the child, before it has its own handlers, would wake the parent's watcher."""
    if _kept is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global _kept
    if _kept is not None:
        _kept.abandon()
        _kept = None
    _after_fork()


def _die() -> None:
    """End by TERM with its default action. Python lets only the main thread set that, and it may be waiting."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
