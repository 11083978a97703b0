"""`@recoverable`: after a fault of another rank, this process stays and enters its training again.

    from transom_cli import recoverable

    @recoverable
    def train(ctx):
        dist.init_process_group("gloo")
        ...

The launcher orders it (`launch.recoverable`). A thread of this process finds the order in node memory and interrupts
the training: it shuts the sockets of the process groups, so that collectives end at once, and raises `Reentered` in the
main thread by a signal. Then the groups are destroyed, Checkpointers let go of their snapshots, heartbeats begin the
next launch, and the function is called again with the variables of the new rendezvous.

gloo's own abort() does not end a collective while its peers live (torch 2.13). NCCL's groups are aborted by torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from transom_cli.heartbeat import client, paths, reentry

POLL = 0.05  # seconds between two looks for an order
AGAIN = 0.1  # seconds between two interrupts, until the main thread answers
STUCK = 5.0  # seconds after which a process whose main thread does not answer starts from scratch
PATIENCE = 15.0  # seconds that a rank whose collective has failed waits for an order
_SIGNAL = signal.SIGURG  # ignored by default; ends sleeps and waits for locks
_IGNORE = ctypes.c_void_p(1)  # SIG_IGN
_OF_A_PEER = ("gloo", "nccl", "connection", "socket", "store", "process group", "timed out", "peer")
T = TypeVar("T")


class Reentered(BaseException):
    """Ends the training function, which is then called again. Not an Exception: trainers catch these."""


class Context:
    """The first argument of the training function.

    entry: how often this process has entered it before; 0 in a fresh process.
    """

    def __init__(self) -> None:
        self.entry = 0
        self._kept: dict[str, Any] = {}

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned in an earlier entry of this process; otherwise call it.

        For what is expensive and belongs to no process group: data, a tokenizer, compiled code, or a model whose
        values are restored.
        """
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found


def recoverable(function: Callable[..., T]) -> Callable[..., T]:
    """Let this process enter `function` again after a fault of another rank. Its first argument is a `Context`.

    Without `launch.recoverable`, or outside the main thread, it is called once.
    """

    @functools.wraps(function)
    def enter(*args: Any, **kwargs: Any) -> T:
        folder = os.environ.get(paths.BEAT_DIR, "") if os.environ.get(paths.RECOVERABLE) else ""
        main = threading.current_thread() is threading.main_thread()
        if not folder or not main or signal.getsignal(_SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN):
            return function(Context(), *args, **kwargs)
        context = Context()
        found: T = _Recovery(folder, context, lambda: function(context, *args, **kwargs)).run()
        return found

    return enter


class _Recovery:
    """Runs the training in the main thread, and watches for orders in another."""

    def __init__(self, folder: str, context: Context, train: Callable[[], Any]) -> None:
        self._folder, self._context, self._train = folder, context, train
        self._rank = paths.own_rank()
        self._interrupting = False
        self._order: dict[str, str] | None = None
        self._ordered, self._over = threading.Event(), threading.Event()

    def run(self) -> Any:
        former = signal.signal(_SIGNAL, self._interrupt)
        self._hook = sys.excepthook
        try:
            with _sockets.noted():
                while True:
                    done, value = self._once()
                    if done:
                        return value
                    self._again()
        finally:
            signal.signal(_SIGNAL, former)

    def _once(self) -> tuple[bool, Any]:
        """Train until the end, or until an order. Raises what the training raises if no order comes."""
        launch = paths.own_launch()
        self._order = None
        self._ordered.clear()
        self._over.clear()
        watcher = threading.Thread(target=self._watch, args=(launch,), name="transom-reentry", daemon=True)
        watcher.start()
        with contextlib.suppress(OSError):
            reentry.hear(self._folder, launch, self._rank)
        done, value = False, None
        try:
            try:
                try:
                    value, done = self._train(), True
                finally:
                    self._interrupting = False
            except Reentered:
                pass
            except Exception as error:
                if not self._ordered.is_set() and not (_is_of_a_peer(error) and self._ordered.wait(PATIENCE)):
                    raise
            finally:
                self._interrupting = False
        except Reentered:  # came while an error was handled
            self._interrupting = False
        finally:
            self._interrupting = False
            reentry.hear_no_more(self._folder, launch, self._rank)
            ordered = reentry.read_order(self._folder, launch)  # no later one counts on this rank
            self._over.set()
            watcher.join()
            self._order = ordered or self._order
        return self._order is None and done, value

    def _again(self) -> None:
        """Leave the launch, and become a rank of the next one."""
        guard = threading.Timer(STUCK, self._start_from_scratch)  # a group that ends joins its threads
        guard.daemon = True
        guard.start()
        reentry.close_all()
        with contextlib.suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
        _sockets.forget()
        sys.excepthook = self._hook  # torch wraps it for each group
        gc.collect()  # frames of the training, and with them groups and workers of data loaders
        guard.cancel()
        self._adopt()
        self._context.entry += 1

    def _adopt(self) -> None:
        assert self._order is not None
        os.environ.update(self._order)
        launch = paths.own_launch()
        reentry.redirect(launch, self._rank)
        client.reentered(launch)

    def _watch(self, launch: int) -> None:
        while not self._over.wait(POLL):
            order = reentry.read_order(self._folder, launch)
            if order is None:
                continue
            self._order, self._interrupting = order, True
            self._ordered.set()
            until = time.monotonic() + STUCK
            while not self._over.is_set():
                _abort()
                if self._interrupting:
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
                if time.monotonic() > until:
                    self._start_from_scratch()
                self._over.wait(AGAIN)

    def _start_from_scratch(self) -> None:
        """Execute the rank's command again in this process: the main thread is stuck in a call.

        gloo (torch 2.13) loses a send now and then when its connection fails, and waits for it.
        """
        self._adopt()
        what = "the main thread of this rank is stuck in a call, so its process starts from scratch"
        print(f"transom: {what}", file=sys.stderr, flush=True)
        ctypes.CDLL(None).signal(signal.SIGUSR2, _IGNORE)  # as in a fresh rank; only the main thread may by Python
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if fd > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
        os.execvp(sys.orig_argv[0], sys.orig_argv)

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self._interrupting:
            raise Reentered


def _is_of_a_peer(error: Exception) -> bool:
    """Whether the error may be another rank's: then an order may come."""
    words = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(word in words for word in _OF_A_PEER)


def _abort() -> None:
    """End the collectives of this process."""
    if not dist.is_initialized() or "nccl" not in dist.get_backend():
        _sockets.shut()
        return
    with contextlib.suppress(Exception):
        c10d._abort_process_group()


class _Sockets:
    """The TCP sockets of torch's process groups and stores: those that appear while torch makes one."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._before: set[str] | None = None  # while one is being made

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note sockets in this block."""
        made, met = c10d._new_process_group_helper, c10d.rendezvous

        def make(*args: Any, **kwargs: Any) -> Any:
            with self._new():
                return made(*args, **kwargs)

        def meet(*args: Any, **kwargs: Any) -> Iterator[Any]:
            found = met(*args, **kwargs)
            while True:
                with self._new():
                    try:
                        one = next(found)
                    except StopIteration:
                        return
                yield one

        c10d._new_process_group_helper, c10d.rendezvous = make, meet
        try:
            yield
        finally:
            c10d._new_process_group_helper, c10d.rendezvous = made, met

    @contextlib.contextmanager
    def _new(self) -> Iterator[None]:
        self._before = set(_open_sockets())
        try:
            yield
        finally:
            self._known |= set(_open_sockets()) - self._before
            self._before = None

    def shut(self) -> None:
        """Shut them, and what was accepted at one of them: gloo accepts connections after it has made a group."""
        before, accepted = self._before, list[socket.socket]()
        with contextlib.ExitStack() as stack:
            ports = set()
            for name, fd in _open_sockets().items():
                with contextlib.suppress(OSError):
                    found = stack.enter_context(socket.socket(fileno=os.dup(fd)))
                    if found.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    ours = name in self._known or (before is not None and name not in before)
                    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        ports |= {found.getsockname()[1]} if ours else set()
                    elif ours:
                        found.shutdown(socket.SHUT_RD)
                    else:
                        accepted.append(found)
            for found in accepted:
                with contextlib.suppress(OSError):
                    if found.getsockname()[1] in ports:
                        found.shutdown(socket.SHUT_RD)

    def forget(self) -> None:
        self._known.clear()


_sockets = _Sockets()


def _open_sockets() -> dict[str, int]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if target.startswith("socket:"):
                found[target] = int(name)
    return found
