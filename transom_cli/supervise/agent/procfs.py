"""This user's processes on this node as /proc tells them, and a signal to exactly one of them.

Layout of the files: proc(5). The calls that read another process's memory (its environment, its command line) may
hang with a process that hangs in the kernel with its memory map locked: callers with a time limit use a thread.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """One process, or what its threads have left of it. `start`: clock ticks after boot.

    With the pid it names one process for all time: a recycled pid is somebody else.
    """

    pid: int
    start: int
    ppid: int
    state: str  # R, S, D, T (stopped), t (traced), ...; never that of a mere zombie
    comm: str


def read(pid: int) -> Process | None:
    """The process, or None when there is none.

    A zombie counts as none: it holds no port and no memory and writes nothing, and reaping it is its parent's affair.
    But a process whose first thread has ended while another lives (in a driver's call, say) looks like a zombie too.
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
    """This user's processes by pid, without the caller and its ancestors."""
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
    """Signal exactly this process; False when it is gone or not ours to signal.

    The pidfd is taken first and the start time looked at after: what the descriptor names is not recycled since.
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
    """As it was at exec; empty when it is not ours to read."""
    raw = _bytes(f"/proc/{pid}/environ")
    if not raw and (thread := _living_thread(pid)):  # its first thread has ended and shows no memory any more
        raw = _bytes(f"/proc/{pid}/task/{thread[0]}/environ")
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command_line(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in _bytes(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]


def maps(pid: int) -> str:
    """Its memory mappings, as in proc(5); empty when they are not ours to read."""
    return os.fsdecode(_bytes(f"/proc/{pid}/maps"))


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    mask = _bytes(f"/proc/{pid}/status").partition(b"\nSigCgt:")[2].split(None, 1)
    return bool(mask) and bool(int(mask[0], 16) >> (number - 1) & 1)


def is_python(process: Process) -> bool:
    """Whether it runs an interpreter: by its program, else (not ours to read) by its name."""
    try:
        program = os.readlink(f"/proc/{process.pid}/exe").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        program = process.comm
    return program.startswith(("python", "pypy"))


def _is_ours(name: str) -> bool:
    """By the real user id: the folder in /proc is root's while its process refuses to be dumped (prctl(2))."""
    try:
        owner = os.stat(f"/proc/{name}").st_uid  # noqa: PTH116
        if owner == 0 != os.getuid():
            owner = int(_bytes(f"/proc/{name}/status").partition(b"\nUid:")[2].split(None, 1)[0])
    except (OSError, IndexError):
        return False
    return owner == os.getuid()


def _stat(path: str, pid: int) -> tuple[Process, int] | None:
    """The process and how many threads it has; None when there is none."""
    # the name may itself hold spaces and brackets, and need not be text
    comm, _, rest = _bytes(path).decode(errors="replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], comm), int(fields[17])


def _living_thread(pid: int) -> tuple[str, str] | None:
    """Id and state of a thread that lives; None when all have ended."""
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
    """The file's content, empty when it cannot be read. By system calls: a look reads thousands of these files."""
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
