"""Reads this user's processes on this node from /proc, and sends a signal to exactly one of them.

Source: proc(5). Reading another process's memory (its environment, its command line) may hang if that process hangs in
the kernel with its memory map locked: callers with a time limit use a thread.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

THREADS = 64  # per process in `facts`; the first by number, so that the main thread is included
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process. `start`: clock ticks after boot, which distinguishes it from a later process with the same pid."""

    pid: int
    start: int
    ppid: int
    state: str  # R, S, D, T (stopped), t (traced), ...; never that of a zombie
    comm: str


def read(pid: int) -> Process | None:
    """Return the process, or None if there is none.

    A zombie counts as none: it has no port and no memory, writes nothing, and only its parent can reap it. A process
    whose first thread has ended while another lives, in a driver's call for example, only looks like a zombie.
    """
    found = _stat(f"/proc/{pid}/stat", pid)
    if found is None:
        return None
    first, threads = found
    if first.state not in "ZX":
        return first
    thread = _living_thread(pid) if threads > 1 else None
    return Process(pid, first.start, first.ppid, thread[1], first.comm) if thread else None


def living() -> dict[int, Process]:
    """Return this user's processes by pid, without the caller and its ancestors."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - the whole node's: names, not Path objects
        process = read(int(name)) if name.isdigit() and _is_ours(name) else None
        if process is not None:
            found[process.pid] = process
    pid = os.getpid()
    while pid:
        one = found.pop(pid, None) or read(pid)
        pid = one.ppid if one else 0
    return found


def send(process: Process, number: int) -> bool:
    """Signal exactly this process. Return False if it is gone or belongs to someone else.

    The pidfd is opened before the start time is compared: the process that the descriptor names cannot be recycled.
    """
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        return False
    except OSError:  # no such system call, or a filter forbids it
        handle = -1
    try:
        now = read(process.pid)
        if now is None or now.start != process.start:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def environ(pid: int) -> dict[str, str]:
    """Return the environment as it was at exec; empty if we may not read it."""
    raw = _bytes(f"/proc/{pid}/environ")
    if not raw and (thread := _living_thread(pid)):  # its first thread has ended and shows no memory any more
        raw = _bytes(f"/proc/{pid}/task/{thread[0]}/environ")
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command_line(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in _bytes(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]


def maps(pid: int) -> str:
    """Return its memory mappings, as in proc(5); empty if we may not read them."""
    return os.fsdecode(_bytes(f"/proc/{pid}/maps"))


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    mask = _bytes(f"/proc/{pid}/status").partition(b"\nSigCgt:")[2].split(None, 1)
    return bool(mask) and bool(int(mask[0], 16) >> (number - 1) & 1)


def is_python(process: Process) -> bool:
    """Return whether it is a Python interpreter, by its program or, if we may not read that, by its name."""
    try:
        program = os.readlink(f"/proc/{process.pid}/exe").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        program = process.comm
    return program.startswith(("python", "pypy"))


def _is_ours(name: str) -> bool:
    """Return whether it is ours, by the real user ID: /proc's folder is root's if it may not be dumped (prctl(2))."""
    try:
        owner = os.stat(f"/proc/{name}").st_uid  # noqa: PTH116
        if owner == 0 != os.getuid():
            owner = int(_bytes(f"/proc/{name}/status").partition(b"\nUid:")[2].split(None, 1)[0])
    except (OSError, IndexError):
        return False
    return owner == os.getuid()


def _stat(path: str, pid: int) -> tuple[Process, int] | None:
    """Return the process and its number of threads; None if there is none."""
    # the name may itself hold spaces and brackets, and need not be text
    comm, _, rest = _bytes(path).decode(errors="replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], comm), int(fields[17])


def _living_thread(pid: int) -> tuple[str, str] | None:
    """Return ID and state of a living thread; None if all have ended."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return None
    for name in names:
        found = _stat(f"/proc/{pid}/task/{name}/stat", pid)
        if found is not None and found[0].state not in "ZX":
            return name, found[0].state
    return None


def _bytes(path: str) -> bytes:
    """Return the file's content; empty if it cannot be read. Uses system calls: there are thousands of these files."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def facts(process: Process) -> dict[str, object]:
    """Return state, name, wchan, syscall, threads, rss (bytes), fds (descriptors), oom_score_adj and cgroup.

    A fact that cannot be read is None. syscall: the call's number and its arguments, or "running". wchan: the kernel
    function in which it waits, "0" if none or hidden.
    """
    place = Path(f"/proc/{process.pid}")
    tids = sorted(int(tid) for tid in _names(place / "task") or ())
    resident = (_text(place / "statm") or "").split()
    return {
        "state": _state(place) or process.state,
        "name": process.comm,
        "wchan": _text(place / "wchan"),
        "syscall": _text(place / "syscall"),
        "threads": [_thread(place / "task" / str(tid), tid) for tid in tids[:THREADS]],
        "thread_count": len(tids),
        "rss": int(resident[1]) * _PAGE if len(resident) > 1 else None,
        "fds": _count(place / "fd"),
        "oom_score_adj": _text(place / "oom_score_adj"),
        "cgroup": _text(place / "cgroup"),
    }


def _thread(place: Path, tid: int) -> dict[str, object]:
    return {
        "tid": tid,
        "name": _text(place / "comm"),
        "state": _state(place),
        "wchan": _text(place / "wchan"),
        "syscall": _text(place / "syscall"),
    }


def _state(place: Path) -> str | None:
    text = _text(place / "stat")
    return text.rpartition(")")[2].split()[0] if text and ")" in text else None


def _count(place: Path) -> int | None:
    names = _names(place)
    return None if names is None else len(names)


def _names(place: Path) -> list[str] | None:
    try:
        return os.listdir(place)  # noqa: PTH208
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes()[:4096].decode(errors="replace").strip()
    except OSError:
        return None
