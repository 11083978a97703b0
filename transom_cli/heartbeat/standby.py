"""A Python that has imported what the training imports, and waits to become a rank (`launch.standby`).

`learn` runs in a rank that trains: it writes which modules were imported, and from where. `wait` runs in a process of
the next launch, inside Python's own start (heartbeat/auto): the process has the rank's command line, folder, limits
and binding, and runs its script when `wait` returns. So the script is `__main__` as in any other start.

The process starts from scratch (exec) if it differs from a fresh one in what is checked here: a module came from
elsewhere or was not imported by the trainer, an import started a thread or opened a socket, or it read a variable of
the environment that has changed since. Not seen: variables that C code reads by itself.

Standard library only: it runs in the trainer's interpreter, by its path.
"""
# Python's own start must not wait for pathlib
# ruff: noqa: PTH105, PTH115, PTH120, PTH123, PTH208

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
_IGNORED = ("SIGUSR1", "SIGHUP")  # while it waits, as the rank's wrapper does


def learn(path: str) -> None:
    """Write name and origin of the modules of this process to `path`, the oldest first. Others may read it meanwhile.

    A standby imports those of Python, of installed packages and of transom; the others have no origin in the file.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        origin = _origin(module)
        if origin:
            ours = _is_installed(origin) or name.partition(".")[0] == _TRANSOM
            found[name] = origin if ours else ""
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump(found, file)
    os.replace(f"{path}.{os.getpid()}", path)


def wait(path: str, go: int, report: int) -> None:
    """Import the modules in the file `path`, and return when this process is a rank.

    Args:
        go: descriptor to read from: variables to set and to remove, and the rank's log, as JSON. At its end without
            that, the process ends.
        report: descriptor to write to when it is ready: why it will start from scratch; nothing if it will not.
    """
    os.set_inheritable(go, False)
    reads = _Reads()
    try:
        with open(path) as file:
            learned = json.load(file)
        with reads:
            why = _import(learned)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    os.write(report, why.encode())
    os.close(report)
    with open(go, "rb") as pipe:
        text = pipe.read()
    if not text:
        os._exit(0)
    said: dict[str, Any] = json.loads(text)
    _redirect(said["log"])
    _default_signals()
    changed = {*said["set"], *said["unset"]}
    if not why and (read := sorted(changed & reads.names)):
        why = f"an import has read {', '.join(read)}, which has changed"
    os.environ.update(said["set"])
    for name in said["unset"]:
        os.environ.pop(name, None)
    if why:
        print(f"transom: this rank starts from scratch, not from its standby: {why}", file=sys.stderr, flush=True)
        _mark(said["mark"])
        os.execvp(sys.orig_argv[0], sys.orig_argv)


def _mark(path: str) -> None:
    """Make a file by which the launcher knows."""
    try:  # noqa: SIM105 - contextlib need not have been imported
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    except OSError:
        pass


class _Reads:
    """Notes which variables are read from `os.environ` in its block. A walk over all of them is not counted."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._kind: Any = type(os.environ)
        self._get, self._walk = self._kind.__getitem__, self._kind.__iter__

    def __enter__(self) -> None:
        walked: list[str] = []

        def get(environ: "Any", name: "Any") -> "Any":
            if walked and walked[-1] == name:
                walked.clear()
            else:
                self.names.add(name)
            return self._get(environ, name)

        def walk(environ: "Any") -> "Any":
            for name in self._walk(environ):
                walked[:] = [name]
                yield name

        self._kind.__getitem__, self._kind.__iter__ = get, walk

    def __exit__(self, *_: object) -> None:
        self._kind.__getitem__, self._kind.__iter__ = self._get, self._walk


def _import(learned: "dict[str, str]") -> str:
    """Import the modules. Return why this process differs from a fresh one; "" if it does not."""
    import importlib

    sockets, before = _sockets(), set(sys.modules)
    for name in (name for name, origin in learned.items() if origin):
        try:
            importlib.import_module(name)
        except ImportError:  # a module that exists only within another one's import
            continue
    for name in sys.modules.keys() - before:
        origin = _origin(sys.modules[name])
        if origin and name not in learned:
            return f"the trainer has not imported {name}"
        if origin and learned[name] != origin and (learned[name] or _is_installed(origin)):
            return f"module {name} comes from {origin}, and the trainer's from {learned[name] or 'elsewhere'}"
    threading: Any = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return f"an import has started the thread {threading.enumerate()[-1].name}"
    if more := _sockets() - sockets:
        return f"an import has opened {more} sockets"
    return ""


def _origin(module: object) -> str:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return origin if isinstance(origin, str) else ""


def _is_installed(origin: str) -> bool:
    return origin in _WITHOUT_FILE or origin.startswith(_STDLIB) or any(part in origin for part in _INSTALLED)


def _sockets() -> int:
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


def _default_signals() -> None:
    import signal

    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
