"""A Python that has imported what the training imports, and waits to become a rank (`launch.standby`).

`learn` runs in a rank that trains: it writes which modules were imported, and from where. `wait` runs in a process of
the next launch, inside Python's own start (heartbeat/auto): the process has the rank's command line, folder, limits
and binding, and runs its script when `wait` returns. So the script is `__main__` as in any other start. If the standby
is to go further, `wait` returns at once, and the script waits at the call of its `@recoverable` function
(heartbeat/standby_script).

The process starts from scratch (exec) if it differs from a fresh one in what is checked here: a module came from
elsewhere or was not imported by the trainer, an import started a thread or opened a socket, or it read a variable of
the environment that has changed since. Not seen: variables that C code reads by itself.

Standard library only: it runs in the trainer's interpreter, by its path.
"""
# Python's own start must not wait for pathlib
# ruff: noqa: PTH105, PTH109, PTH115, PTH120, PTH123, PTH208

import gc
import json
import os
import sys

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    from typing import Any

_INSTALLED = ("/site-packages/", "/dist-packages/")
_STDLIB = os.path.dirname(os.__file__) + "/"
_WITHOUT_FILE = ("built-in", "frozen")
_TRANSOM = "transom_cli"
_OF_ENVIRON = ("/os.py", "<frozen os>", "/_collections_abc.py", "<frozen _collections_abc>")
_IGNORED = ("SIGUSR1", "SIGHUP")  # while it waits, as the rank's wrapper does
PENDING = frozenset(("MASTER_ADDR", "MASTER_PORT", "TRANSOM_REPLICAS"))  # known only when the launch begins


def learn(path: str) -> None:
    """Write name and origin of the modules of this process to `path`, the oldest first. Others may read it meanwhile.

    A standby imports those of Python, of installed packages and of transom; the others have no origin in the file.
    recoverable: whether the training runs in a `@recoverable` function that waits in a standby.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        origin = _origin(module)
        if origin:
            ours = is_installed(origin) or name.partition(".")[0] == _TRANSOM
            found[name] = origin if ours else ""
    watched = getattr(sys.modules.get("transom_cli.heartbeat.reentry"), "watched", bool)
    waits = hasattr(sys.modules.get("transom_cli.heartbeat.paths"), "await_rank")
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump({"modules": found, "recoverable": waits and watched()}, file)
    os.replace(f"{path}.{os.getpid()}", path)


def wait(path: str, go: int, report: int, output: int = -1) -> None:
    """Import the modules in the file `path`, and return when this process is a rank.

    Args:
        go: descriptor to read from: variables to set and to remove, and the rank's log, as JSON. At its end without
            that, the process ends.
        report: descriptor to write a line of JSON to when it waits. at: where in the script; "" before it. why: why it
            will start from scratch; "" if it will not.
        output: descriptor that takes the script's output meanwhile: it runs up to the call of its `@recoverable`
            function. -1: it does not run beforehand.
    """
    for end in (go, report, output):
        if end >= 0:
            os.set_inheritable(end, False)
    place, reads = Place(go, report), Reads()
    runs = False
    try:
        with open(path) as file:
            learned = json.load(file)
        with reads:
            why = _import(learned["modules"])
        if "TRANSOM_RECOVERABLE" in os.environ:  # its first re-entry need not look at what was imported
            gc.collect()
            gc.freeze()
        runs = output >= 0 and learned["recoverable"]
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    if runs and not why and not (reads.names & PENDING):
        script = place.beside("standby_script")
        script.Script(place, reads, output).begin()
        return
    place.tell(why=why)
    place.become(place.hear(), why, reads.names)


class Place:
    """What this process has from its wrapper, and what a fresh one would have."""

    def __init__(self, go: int, report: int) -> None:
        import signal

        self._go, self._report = go, report
        self._environ, self._folder, self._sockets = dict(os.environ), os.getcwd(), sockets()
        default = [getattr(signal, name) for name in _IGNORED]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._ignored = {n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN} - {*default}

    def beside(self, name: str) -> "Any":
        """Load a module by its path: the trainer may find another transom."""
        import importlib.util

        spec: Any = importlib.util.spec_from_file_location(f"_transom_{name}", f"{os.path.dirname(__file__)}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def tell(self, at: str = "", why: str = "") -> None:
        os.write(self._report, json.dumps({"at": at, "why": why}).encode() + b"\n")

    def hear(self, streams: "list[int] | tuple[()]" = ()) -> "dict[str, Any]":
        """Wait until this process is to be a rank, and return the message.

        Args:
            streams: what its standard output and error are then, if it cannot write to the rank's log.
        """
        with open(self._go, "rb") as pipe:
            text = pipe.read()
        if not text:
            os._exit(0)
        said: dict[str, Any] = json.loads(text)
        os.close(self._report)
        for number, stream in zip((1, 2), streams, strict=False):
            os.dup2(stream, number)
        _redirect(said["log"])
        return said

    def become(self, said: "dict[str, Any]", why: str, read: "set[str]", who: str = "an import") -> None:
        """Be a rank; from scratch if there is a reason `why`, or if a variable of those in `read` has changed."""
        changed = {*said["set"], *said["unset"]}
        if not why and (names := sorted(changed & read)):
            why = f"{who} has read {', '.join(names)}, which has changed"
        if why:
            self._start_from_scratch(said, why)
        import signal

        for number in (getattr(signal, name) for name in _IGNORED):
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        for name in changed:
            if os.environ.get(name) != self._environ.get(name):  # the script's own value
                continue
            if name in said["set"]:
                os.environ[name] = said["set"][name]
            else:
                os.environ.pop(name, None)

    def _start_from_scratch(self, said: "dict[str, Any]", why: str) -> None:
        """Execute the rank's command again, with nothing that the script has left in this process."""
        import ctypes
        import signal

        print(f"transom: this rank starts from scratch, not from its standby: {why}", file=sys.stderr, flush=True)
        _mark(said["mark"])
        _kill_children()
        signal.setitimer(signal.ITIMER_REAL, 0)
        libc = ctypes.CDLL(None)  # Python sets no dispositions outside the main thread
        for number in signal.valid_signals():
            libc.signal(int(number), ctypes.c_void_p(int(number in self._ignored)))
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2:
                try:
                    os.set_inheritable(fd, False)
                except OSError:
                    continue
        os.chdir(self._folder)
        environ = {name: value for name, value in self._environ.items() if name not in said["unset"]}
        os.execvpe(sys.orig_argv[0], sys.orig_argv, {**environ, **said["set"]})

    def more_sockets(self) -> int:
        return sockets() - self._sockets


def _mark(path: str) -> None:
    """Make a file by which the launcher knows."""
    try:  # noqa: SIM105 - contextlib need not have been imported
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    except OSError:
        pass


class Reads:
    """Notes which variables are read from `os.environ` in its block. A walk over all of them is not counted.

    stop: called before one of `PENDING` is read, unless an installed package walks over all variables.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.stop: Any = None
        self._kind: Any = type(os.environ)
        self._get, self._walk = self._kind.__getitem__, self._kind.__iter__

    def __enter__(self) -> None:
        walked: list[str] = []

        def get(environ: "Any", name: "Any") -> "Any":
            walks, text = bool(walked) and walked[-1] == name, os.fsdecode(name)
            if walks:
                walked.clear()
            if self.stop is not None and text in PENDING and not (walks and is_installed(_reader())):
                self.stop(f"reading {text}")
            elif not walks:
                self.names.add(text)
            return self._get(environ, name)

        def walk(environ: "Any") -> "Any":
            for name in self._walk(environ):
                walked[:] = [name]
                yield name

        self._kind.__getitem__, self._kind.__iter__ = get, walk

    def __exit__(self, *_: object) -> None:
        self._kind.__getitem__, self._kind.__iter__ = self._get, self._walk


def _reader() -> str:
    """The file of the code that reads `os.environ`."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(_OF_ENVIRON):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _import(learned: "dict[str, str]") -> str:
    """Import the modules. Return why this process differs from a fresh one; "" if it does not."""
    import importlib

    opened, before = sockets(), set(sys.modules)
    for name in (name for name, origin in learned.items() if origin):
        try:
            importlib.import_module(name)
        except ImportError:  # a module that exists only within another one's import
            continue
    for name in sys.modules.keys() - before:
        origin = _origin(sys.modules[name])
        if origin and name not in learned:
            return f"the trainer has not imported {name}"
        if origin and learned[name] != origin and (learned[name] or is_installed(origin)):
            return f"module {name} comes from {origin}, and the trainer's from {learned[name] or 'elsewhere'}"
    threading: Any = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return f"an import has started the thread {threading.enumerate()[-1].name}"
    if more := sockets() - opened:
        return f"an import has opened {more} sockets"
    return ""


def _origin(module: object) -> str:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return origin if isinstance(origin, str) else ""


def is_installed(origin: str) -> bool:
    return origin in _WITHOUT_FILE or origin.startswith(_STDLIB) or any(part in origin for part in _INSTALLED)


def sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return found


def _redirect(log: str) -> None:
    """Write to the rank's own log from now on, as its wrapper does."""
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # the wrapper has said so
        return
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _kill_children() -> None:
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                children = file.read().split()
        except OSError:
            continue
        for pid in children:
            try:
                os.kill(int(pid), 9)
            except OSError:
                continue
