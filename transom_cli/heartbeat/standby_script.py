"""The script of a standby runs beforehand, up to the call of its `@recoverable` function (`launch.standby_reach`).

It waits there, or before anything that a second process of the same rank must not do while the first one trains:

- read the rendezvous, or form a process group
- begin to use a GPU
- open the rank's heartbeats or a checkpoint
- create, change or remove a file, except in caches and temporary folders
- open a connection, or fork

When the launch begins, the script continues from there, with the variables, log and signals of the rank. What it has
printed goes into the rank's log. If anything but its main thread comes to such a point, or the process has sockets or
a process group all the same, the rank starts from scratch.

Standard library only: it runs in the trainer's interpreter, by its path.
"""
# ruff: noqa: PTH109, PTH112, PTH119, PTH120

import _thread
import functools
import os
import sys

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    from typing import Any

NAME = "transom_standby"  # in sys.modules, while the script waits (paths.await_rank)
_KEPT = 1 << 20  # bytes of output that go into the rank's log
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OWN = ("TRANSOM_BEAT_DIR", "TRANSOM_ATTEMPT_DIR", "TRANSOM_CHECKPOINT_DIR")  # what is there belongs to the rank
_CHANGES = {  # audit events, and which arguments are paths that change
    "os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,),
}  # fmt: skip
_LISTS = ("os.listdir", "os.scandir")
_NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")
_FORKS = ("os.fork", "os.forkpty")


class Script:
    """The script of this process, until it is a rank."""

    def __init__(self, place: "Any", reads: "Any", output: int) -> None:
        """place, reads: of heartbeat/standby. output: descriptor that takes what the script prints."""
        self._place, self._reads, self._output = place, reads, output
        self._lock = _thread.allocate_lock()
        self._main, self._inside, self._over = _thread.get_ident(), 0, False
        self._guarded: list[Any] = []
        self._made = 0  # sockets, by Python
        self._folders = (os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0])))
        self._own = [os.path.realpath(os.environ[name]) for name in _OWN if os.environ.get(name)]
        temporary = {"/tmp", "/var/tmp", os.environ.get("TMPDIR") or "/tmp"}
        temporary |= {os.environ[name] for name in os.environ if "CACHE" in name or name in ("HF_HOME", "TORCH_HOME")}
        temporary = {one for one in temporary if one.startswith("/")}
        self._scratch = ("/dev/", "/proc/", *(f"{os.path.realpath(one)}/" for one in temporary))

    def begin(self) -> None:
        self._former = [os.dup(1), os.dup(2)]
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        self._reads.stop = self.await_rank
        self._reads.__enter__()
        for place in ("torch.distributed", "torch.distributed.distributed_c10d"):
            self._guard(place, "init_process_group", "joining a process group")
        for place in ("torch.cuda", "torch.xpu"):
            self._guard(place, "_lazy_init", "using a GPU")
        self._hook, sys.excepthook = sys.excepthook, self._fail
        sys.addaudithook(self._audit)
        module = type(sys)(NAME)
        module.await_rank = self.await_rank  # type: ignore[attr-defined]
        sys.modules[NAME] = module

    def await_rank(self, before: str) -> None:
        """Wait until this process is a rank. Returns at once if it is one."""
        me = _thread.get_ident()
        if self._over or self._inside == me:
            return
        with self._lock:
            if self._over:
                return
            self._inside = me
            at = f"before {before}{_line()}"
            why = self._difference() if me == self._main else f"a thread waits {at}"
            self._place.tell(at, why)
            said = self._place.hear(self._former)
            self._end()
            if not why:
                _copy(self._output)
            self._place.become(said, why, self._reads.names, "the script")
            os.close(self._output)
            self._over, self._inside = True, 0

    def _end(self) -> None:
        """Undo what `begin` did. Audit hooks remain, and do nothing any more."""
        self._reads.__exit__()
        sys.modules.pop(NAME, None)
        if sys.excepthook == self._fail:
            sys.excepthook = self._hook
        for module, name, original, guarded in self._guarded:
            if getattr(module, name, None) is guarded:
                setattr(module, name, original)
        for fd in self._former:
            os.close(fd)

    def _fail(self, *error: "Any") -> None:
        """The script has failed before it was a rank: nothing that it does at its end is wanted."""
        self._hook(*error)
        if not self._over:  # afterwards, a hook of the script's own may still call this one
            os._exit(1)

    def _guard(self, place: str, name: str, before: str) -> None:
        module = sys.modules.get(place)
        original = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*args: "Any", **kwargs: "Any") -> "Any":
            self.await_rank(before)
            return original(*args, **kwargs)

        setattr(module, name, guarded)
        self._guarded.append((module, name, original, guarded))

    def _difference(self) -> str:
        """Why this process must start from scratch all the same; "" if it need not."""
        if (more := self._place.more_sockets() - self._made) > 0:
            return f"a library of the script has opened {more} sockets"
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            return "the script has joined a process group"
        return ""

    def _audit(self, event: str, args: "tuple[Any, ...]") -> None:
        if self._over or event[:3] not in ("ope", "os.", "soc") or self._inside == _thread.get_ident():
            return
        if event == "socket.__new__":
            self._made += 1
        elif event in _NETWORK:
            self.await_rank("opening a connection")
        elif event in _FORKS:
            self.await_rank("forking")
        elif event == "open":
            self._look(args[0], changes=bool(args[2] & _WRITES))
        elif event in _LISTS:
            self._look(args[0], changes=False)
        elif event in _CHANGES and not (event == "os.mkdir" and os.path.isdir(args[0])):
            for number in _CHANGES[event]:
                self._look(args[number], changes=True)

    def _look(self, path: "Any", *, changes: bool) -> None:
        try:
            name = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError):  # a descriptor, or nothing that can be opened
            return
        if any(f"{name}/".startswith(f"{own}/") for own in self._own):
            self.await_rank(f"a look at {os.fsdecode(path)}")
        elif changes and not self._is_scratch(name):
            self.await_rank(f"changing {os.fsdecode(path)}")

    def _is_scratch(self, name: str) -> bool:
        """Whether a file is a cache or temporary, so that nobody else depends on it."""
        own = next((one for one in self._folders if name.startswith(f"{one}/")), "")
        if not own and name.startswith(self._scratch):
            return True
        name = name[len(own) :]
        return any(part.startswith(".") or "cache" in part.lower() for part in name.split("/"))


def _line() -> str:
    """Where the trainer's own code is."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/" in name and "-packages/" not in name and "/transom_cli/" not in name and not name.startswith(_STDLIB):
            return f" in {os.path.basename(name)}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


_STDLIB = os.path.dirname(os.__file__) + "/"


def _copy(output: int) -> None:
    """Write what the script has printed into the rank's log."""
    size = os.fstat(output).st_size
    os.write(1, os.pread(output, _KEPT, 0))
    if size > _KEPT:
        os.write(2, f"transom: {size - _KEPT} bytes of output before the rank began are left out\n".encode())
