"""A rank's side of a final checkpoint: it reports its step, finds the request, and survives SIGTERM meanwhile.

All ranks make the same calls of save(), so "the first call with at least the requested step" is the same call on all
ranks that find the request in time. The launcher picks a step for which they do (`supervise.agent.flush`). A rank that
finds the request late, after that call, ignores it: a checkpoint of another step would match nobody's. The ranks that
were in time hold their snapshot until the next save that all ranks make, and give it up there
(`Committer.call_roll`). Only that step is lost. No collective is involved. The files are those of
`heartbeat.final_checkpoint`. Outside transom, or if the files cannot be made, `listen` returns None.

Slurm sends TERM on preemption, at the time limit, on cancel and on requeue, and KILL 30 s later (KillWait). The
launcher uses that time to request a checkpoint, which needs living ranks. A rank that gets no request must not hold up
its node: it dies of that TERM, a few seconds late.

Meanwhile training may be anywhere: a main thread that waits in a collective runs no Python handler. So the
interpreter's C handler writes the signal to a pipe (signal.set_wakeup_fd), and a thread that reads the pipe decides.
That thread needs the GIL: only KILL ends a process that is stuck while holding it.

Existing handlers are respected: if the trainer handles TERM itself, or a wakeup descriptor is in use (asyncio), TERM is
not delayed. A forked child gets the default handler back before a signal can reach it; a new program has it after exec.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from transom_cli.heartbeat import final_checkpoint, paths
from transom_cli.heartbeat.final_checkpoint import END

REQUEST_WAIT = 4.0  # seconds after TERM for a request to arrive
LONGEST = 25.0  # seconds after TERM at most, with a request; less than KillWait
POLL = 0.05  # seconds between two checks for a request


class FinalCheckpointRequests:
    """The requests that one Checkpointer sees. `due` is called at every save() and takes a microsecond."""

    def __init__(self, files: _RankFiles) -> None:
        self._files: _RankFiles | None = files
        self._before = self._served = final_checkpoint.NONE
        files.open.add(self)

    def due(self, step: int) -> bool:
        """Report that save(step) is called. Returns whether a request makes it due; then call `follow`."""
        files = self._files
        if files is None:
            return False
        before, self._before = self._before, step
        files.report(step)  # before reading the request: see heartbeat.final_checkpoint
        request = files.request()
        if request <= self._served or step < request:
            return False
        self._served = request
        if before >= request:
            return False
        files.busy(+1)
        return True

    def follow(self, writing: Future[None] | None) -> None:
        """The due checkpoint is being written, or (None) exists: SIGTERM need not be delayed after it."""
        files = self._files
        if files is not None and writing is not None:
            writing.add_done_callback(lambda _: files.busy(-1))
        elif files is not None:
            files.busy(-1)

    def at(self, step: int) -> None:
        """Training continues from `step`."""
        self._before = step
        if self._files is not None:
            self._files.report(step)

    def close(self) -> None:
        """Stop listening. With the last Checkpointer, SIGTERM is no longer delayed."""
        files, self._files = self._files, None
        if files is not None:
            files.open.discard(self)
            if not files.open:
                files.close()


class _RankFiles:
    """This process's files on its node, shared by its Checkpointers (nearly always one)."""

    def __init__(self, folder: str, launch: int, rank: int) -> None:
        self.open: weakref.WeakSet[FinalCheckpointRequests] = weakref.WeakSet()
        self._seen, self._request, self._reported = b"", final_checkpoint.NONE, final_checkpoint.NONE
        self._busy, self._lock = 0, threading.Lock()
        fd = final_checkpoint.open_order(folder, launch, os.O_RDONLY)
        try:
            self._node: mmap.mmap | bytes = mmap.mmap(fd, final_checkpoint.SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._path = paths.listen_prefix(folder, launch) + str(rank)
        self._fd = final_checkpoint.claim(folder, launch, rank)
        mine = mmap.mmap(self._fd, final_checkpoint.SIZE)
        self._cell = final_checkpoint.Cell(mine)
        self._delay = delay_sigterm(self.read_request, self.pending)
        mine[final_checkpoint.KEEPS] = self._delay is not None

    def report(self, step: int) -> None:
        if step > self._reported:
            self._reported = step
            self._cell.put(step)

    def request(self) -> int:
        """The current request. A slot that is being written is read again at the next call."""
        seen = self._node[final_checkpoint.SLOTS :]
        if seen != self._seen:
            self._seen, self._request = seen, self.read_request()
        return self._request

    def read_request(self) -> int:
        """The same, for other threads than the training's."""
        found = final_checkpoint.newest(self._node[final_checkpoint.SLOTS :])
        return found[1] if found else final_checkpoint.NONE

    def busy(self, change: int) -> None:
        with self._lock:
            self._busy += change

    def pending(self) -> bool:
        """Whether a request is still to be reached, or its checkpoint is being made."""
        return self._busy > 0 or self._reported < self.read_request() < final_checkpoint.END

    def close(self) -> None:
        global _files
        _files = None
        if self._delay is not None:
            release(self._delay)
        with contextlib.suppress(OSError):  # the folder is already gone
            os.unlink(self._path)  # noqa: PTH108
        os.close(self._fd)

    def disconnect(self) -> None:
        """In a forked child: the files belong to its parent."""
        self._node = bytes(final_checkpoint.SIZE)
        self._cell = final_checkpoint.Cell(bytearray(final_checkpoint.SIZE))
        for requests in list(self.open):
            requests._files = None


_files: _RankFiles | None = None
_hooked = False


def listen() -> FinalCheckpointRequests | None:
    """Listen for requests in this process. None outside transom, or if another process listens as this rank."""
    global _files, _hooked
    folder = os.environ.get(paths.BEAT_DIR)
    if not folder:
        return None
    try:
        if _files is None:
            _files = _RankFiles(folder, paths.own_launch(), paths.own_rank())
            if not _hooked:
                _hooked = True
                os.register_at_fork(after_in_child=_forget_post_in_child)
        return FinalCheckpointRequests(_files)
    except (OSError, ValueError):
        return None  # training matters more; the launcher sees that this rank does not listen


def _forget_post_in_child() -> None:
    global _files
    if _files is not None:
        _files.disconnect()
        _files = None


class SigtermDelay:
    """Delays SIGTERM for a request. request: reads the request. pending: whether one is still to be served."""

    def __init__(self, request: Callable[[], int], pending: Callable[[], bool]) -> None:
        self._request, self._pending = request, pending
        self._given_up = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        threading.Thread(target=self._watch, name="transom-term", daemon=True).start()
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.siginterrupt(signal.SIGTERM, False)  # do not interrupt native calls of the training

    def stop(self) -> None:
        """Restore the default handler. The process still dies of a TERM that has arrived."""
        if threading.current_thread() is not threading.main_thread():
            self._given_up = True  # only the main thread may set handlers: the watcher acts at once from now on
            return
        self._restore()
        write_end, self._write_end = self._write_end, -1
        os.write(write_end, b"\0")
        os.close(write_end)

    def abandon(self) -> None:
        """In a forked child: the parent's watcher must not see the child's signals."""
        self._restore()
        os.close(self._read_end)
        os.close(self._write_end)

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        former = signal.set_wakeup_fd(-1)
        if former not in (-1, self._write_end):
            signal.set_wakeup_fd(former)

    def _on_signal(self, number: int, frame: Any) -> None:
        """Python handler, in case another library has replaced the wakeup descriptor. Otherwise the watcher knows."""
        with contextlib.suppress(OSError):  # full: it will read; closed: a handler of the trainer still calls us
            os.write(self._write_end, bytes((number,)))

    def _watch(self) -> None:
        while data := os.read(self._read_end, 64):
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) in (self._on_signal, signal.SIG_DFL):
                self._wait()
                _die()
            if 0 in data:
                break
        os.close(self._read_end)

    def _wait(self) -> None:
        """Return when the process should die."""
        begun, before = time.monotonic(), self._request()
        until = begun + REQUEST_WAIT
        while time.monotonic() < until:
            request = self._request()
            if request == END or self._given_up:
                return
            if request != before or self._pending():
                until = begun + LONGEST
            time.sleep(POLL)


_delay: SigtermDelay | None = None
_fork_hooked = False
_forking = threading.local()


def delay_sigterm(request: Callable[[], int], pending: Callable[[], bool]) -> SigtermDelay | None:
    """Delay SIGTERM until `stop()`. None if the trainer handles it itself."""
    global _delay, _fork_hooked
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    in_use = signal.set_wakeup_fd(-1)
    if in_use != -1:
        signal.set_wakeup_fd(in_use)
        return None
    _delay = SigtermDelay(request, pending)
    if not _fork_hooked:
        _fork_hooked = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_delay_in_child)
        atexit.register(_at_exit)
    return _delay


def release(delay: SigtermDelay) -> None:
    global _delay
    delay.stop()
    _delay = None


def _at_exit() -> None:
    """An interpreter that hangs during shutdown (in a driver's destructor) has no watcher any more."""
    if _delay is not None:
        release(_delay)


def _before_fork() -> None:
    """Block TERM: a TERM to the child, before it has its own handlers, would wake the parent's watcher."""
    if _delay is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_delay_in_child() -> None:
    global _delay
    if _delay is not None:
        _delay.abandon()
        _delay = None
    _after_fork()


def _die() -> None:
    """Die of TERM by its default action. Only the main thread could set that through Python, and it may be blocked."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
