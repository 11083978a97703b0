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

With `@recoverable(replicas="elastic")` the survivors train on without the lost rank (`replicas`).
"""

import contextlib
import ctypes
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.errors import UsageError
from transom_cli.heartbeat import client, paths, reentry
from transom_cli.integrations.replicas import Finished, Joins, Replicas
from transom_cli.integrations.sockets import abort, sockets

POLL, WAITS = 0.05, 0.01  # seconds between two looks for an order: of a rank that trains, of one that waits for it
AGAIN = 0.1  # seconds between two interrupts, until the main thread answers
MERCY = 1.0  # seconds for which a step of the optimizer is not interrupted, so that the state stays whole
STUCK = 5.0  # seconds after which a process whose main thread does not answer starts from scratch
PATIENCE = 15.0  # seconds that a rank whose collective has failed waits for an order
# gloo (torch 2.13) loses a send now and then when its connection fails, and waits for it.
_STUCK_IN_A_CALL = "the main thread of this rank is stuck in a call"
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

    def __init__(self, replicas: Replicas | None = None) -> None:
        self.entry = 0
        self._kept: dict[str, Any] = {}
        self._replicas = replicas

    def join(self, backend: str | None = None, **options: Any) -> None:
        """Call it in place of `torch.distributed.init_process_group`, with the same arguments.

        With elastic replicas, the others wait for this rank from here on: build what is kept before.
        """
        if self._replicas is None:
            dist.init_process_group(backend, **options)
        else:
            self._replicas.join(backend, **options)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned in an earlier entry of this process; otherwise call it.

        For what is expensive and belongs to no process group: data, a tokenizer, compiled code, or a model whose
        values are restored.
        """
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found


@overload
def recoverable(function: Callable[..., T]) -> Callable[..., T]: ...
@overload
def recoverable(*, replicas: str, ranks_per_replica: int = 1) -> Callable[[Callable[..., T]], Callable[..., T]]: ...
def recoverable(
    function: Callable[..., Any] | None = None, *, replicas: str = "", ranks_per_replica: int = 1
) -> Callable[..., Any]:
    """Let this process enter `function` again after a fault of another rank. Its first argument is a `Context`.

    Without `launch.recoverable`, or outside the main thread, it is called once.

    Args:
        replicas: "elastic": all ranks have the same state (DistributedDataParallel), and train on without a lost one,
            with the same global batch (`transom_cli.elastic.GlobalBatches`), until its replacement joins.
        ranks_per_replica: with HSDP, how many ranks in a row shard one replica: the second size of the device mesh.
            The other ranks of a lost rank's replica wait for its replacement.

    Raises:
        UsageError: another value of `replicas`, or no replicas of that size (raised at the call of the function).
    """
    if replicas not in ("", "elastic"):
        raise UsageError(f"replicas={replicas!r} is not known", hint='pass replicas="elastic"')
    if ranks_per_replica < 1 or (ranks_per_replica > 1 and not replicas):
        raise UsageError(
            f"ranks_per_replica={ranks_per_replica} has no meaning here",
            hint='pass replicas="elastic" and a number of ranks that is at least 1',
        )
    if function is None:
        return lambda chosen: _entered(chosen, ranks_per_replica if replicas else 0)
    return _entered(function, 0)


def _entered(function: Callable[..., T], ranks_per_replica: int) -> Callable[..., T]:
    """ranks_per_replica: 0 without elastic replicas."""

    @functools.wraps(function)
    def enter(*args: Any, **kwargs: Any) -> T:
        if os.environ.get(paths.RECOVERABLE) and (paths.is_standby() or paths.own_launch() == 0):  # nobody waits for it
            _settle()
        paths.await_rank(f"the call of {function.__name__}")
        folder = os.environ.get(paths.BEAT_DIR, "") if os.environ.get(paths.RECOVERABLE) else ""
        main = threading.current_thread() is threading.main_thread()
        if not folder or not main or signal.getsignal(_SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN):
            return function(Context(), *args, **kwargs)
        replicas = Replicas(paths.own_rank(), ranks_per_replica) if ranks_per_replica else None
        context = Context(replicas)
        found: T = _Recovery(folder, context, lambda: function(context, *args, **kwargs), replicas).run()
        return found

    return enter


class _Recovery:
    """Runs the training in the main thread, and watches for orders in another."""

    def __init__(
        self, folder: str, context: Context, train: Callable[[], Any], replicas: Replicas | None = None
    ) -> None:
        self._folder, self._context, self._train, self._replicas = folder, context, train, replicas
        self._rank = paths.own_rank()
        self._interrupting = False
        self._order: dict[str, str] | None = None
        self._ordered, self._over = threading.Event(), threading.Event()

    def run(self) -> Any:
        former = signal.signal(_SIGNAL, self._interrupt)
        self._hook = sys.excepthook
        stepping = register_optimizer_step_pre_hook(self._before_step)
        if self._replicas is None:
            reentry.watch(None)
        else:
            reentry.watch(self._replicas.boundary, self._replicas.size)
        try:
            with sockets.noted():
                while True:
                    done, value = self._once()
                    if done:
                        return value
                    self._again()
        except reentry.StartsFromScratch as why:
            self._start_from_scratch(str(why))
        except Finished:
            print("transom: the training has ended before this rank joined it", file=sys.stderr, flush=True)
            raise SystemExit(0) from None
        finally:
            reentry.watch_no_more()
            stepping.remove()
            signal.signal(_SIGNAL, former)
            gc.unfreeze()

    def _once(self) -> tuple[bool, Any]:
        """Train until the end, or until an order. Raises what the training raises if no order comes."""
        launch = paths.own_launch()
        self._order, self._poll = None, POLL
        self._ordered.clear()
        self._over.clear()
        watcher = threading.Thread(target=self._watch, args=(launch,), name="transom-reentry", daemon=True)
        watcher.start()
        with contextlib.suppress(OSError):
            reentry.hear(self._folder, launch, self._rank, elastic=self._replicas is not None)
        done, value, joins = False, None, False
        try:
            try:
                try:
                    value, done = self._train(), True
                finally:
                    self._interrupting = False
            except Reentered:
                pass
            except Joins:
                joins = True
            except Exception as error:
                self._poll = WAITS
                if not self._ordered.is_set() and not (_is_of_a_peer(error) and self._ordered.wait(PATIENCE)):
                    raise
            finally:
                self._interrupting = False
        except Reentered:  # came while an error was handled
            self._interrupting = False
        finally:
            self._interrupting = False
            if not joins:
                reentry.hear_no_more(self._folder, launch, self._rank)
            ordered = reentry.read_order(self._folder, launch)  # no later one counts on this rank
            self._over.set()
            watcher.join()
            self._order = ordered or self._order
        return self._order is None and done and not joins, value

    def _again(self) -> None:
        """Leave the groups; and after an order the launch, to become a rank of the next one."""
        stuck = functools.partial(self._start_from_scratch, _STUCK_IN_A_CALL) if self._order is not None else _end
        guard = threading.Timer(STUCK, stuck)  # a group that ends joins its threads
        guard.daemon = True
        guard.start()
        reentry.close_all()
        with contextlib.suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
            # an interrupted init_process_group has counted its group: the others' names for the next one would differ
            c10d._world.group_count = 0
        if self._replicas is not None:
            self._replicas.left()
        _forget_meshes()
        sys.excepthook = self._hook  # torch wraps it for each group
        _settle()  # frames of the training, and with them groups and workers of data loaders
        guard.cancel()
        if self._order is not None:
            sockets.forget()
            self._adopt()
        self._context.entry += 1

    def _adopt(self) -> None:
        assert self._order is not None
        os.environ.update(self._order)
        launch = paths.own_launch()
        reentry.redirect(launch, self._rank)
        client.reentered(launch)

    def _watch(self, launch: int) -> None:
        while not self._over.wait(self._poll):
            order = reentry.read_order(self._folder, launch)
            if order is None:
                continue
            self._mercy = time.monotonic() + MERCY
            self._order, self._interrupting = order, True
            self._ordered.set()
            until = time.monotonic() + STUCK
            while not self._over.is_set():
                abort()
                if self._interrupting:
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
                if time.monotonic() > until:
                    self._start_from_scratch(_STUCK_IN_A_CALL)
                self._over.wait(AGAIN)

    def _start_from_scratch(self, why: str) -> None:
        """Execute the rank's command again in this process."""
        if self._order is not None:
            self._adopt()
        print(f"transom: {why}, so its process starts from scratch", file=sys.stderr, flush=True)
        ctypes.CDLL(None).signal(signal.SIGUSR2, _IGNORE)  # as in a fresh rank; only the main thread may by Python
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if fd > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(fd, False)
        os.execvp(sys.orig_argv[0], sys.orig_argv)

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self._interrupting and not (reentry.stepping() and time.monotonic() < self._mercy):
            raise Reentered

    def _before_step(self, *_: Any) -> None:
        """An optimizer is about to change the parameters."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()  # or an abort could let it use half-reduced gradients
        if self._interrupting:
            raise Reentered
        reentry.begin_step()


def _settle() -> None:
    """Collect garbage, and leave what lives out of later collections: with torch, each costs a survivor 0.15 s."""
    gc.collect()
    gc.freeze()


def _forget_meshes() -> None:
    """Clear torch's caches of DTensor operations. Device meshes of equal shape are equal keys of them, and the results
    would lead to groups that are gone."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import _redistribute, debug

    for module, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "_gen_transform_infos")):
        clear = getattr(module, name, None)
        if clear is not None:
            getattr(clear, "cache_clear", clear)()
    getattr(_redistribute, "_planner_cache", {}).clear()


def _end() -> None:
    """End this process, which is stuck in a call: the launcher replaces it."""
    os._exit(1)


def _is_of_a_peer(error: Exception) -> bool:
    """Whether the error may be another rank's: then an order may come."""
    words = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(word in words for word in _OF_A_PEER)
