"""Read /proc and /sys, call what may never return, and run other programs safely. Standard library only.

Programs run without a shell, with a deadline and bounded output, and leave no process behind.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Generic, TypeVar

from transom_cli.core.log_lines import clean

SYSFS = "TRANSOM_SYSFS"
"""Environment variable: a folder to read instead of /sys (a recorded machine, or one that a test composed)."""

T = TypeVar("T")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|lustre|gpfs|beegfs|ceph|glusterfs|9p|afs|wekafs|panfs|pvfs2|orangefs|fuse(\..*)?"
)
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


def sysfs(*parts: str) -> Path:
    return Path(os.environ.get(SYSFS) or "/sys", *parts)


def read_text(path: str | Path) -> str:
    """Return the whole file, stripped, or "" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65536):  # /proc returns one page at a time
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def read_number(path: str | Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def names(folder: str | Path) -> tuple[str, ...] | None:
    """Return the sorted names in a folder, or None if the folder is missing or unreadable."""
    try:
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - names, not Path objects
    except OSError:
        return None


class BackgroundCall(Generic[T]):
    """Run `call` in a daemon thread, so that a call that never returns (a dead file system) blocks nobody else.

    The call starts at once and must not raise. If it hangs in the kernel, its thread ends with the process.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._started = time.monotonic()
        self._result: T | None = None
        self._took = 0.0

        def run() -> None:
            self._result = call()
            self._took = time.monotonic() - self._started

        self._thread = threading.Thread(target=run, name="background-call", daemon=True)
        self._thread.start()

    def result(self, timeout: float) -> T | None:
        """Return the result, or None if there is none after `timeout` seconds. May be called again."""
        self._thread.join(max(0.0, timeout))
        return None if self._thread.is_alive() else self._result

    @property
    def waited(self) -> float:
        """Seconds that the call took, or has been running for."""
        return time.monotonic() - self._started if self._thread.is_alive() else self._took


def wait_for_all(calls: list[BackgroundCall[T]], timeout: float) -> list[T | None]:
    """Return one result per call, None for those that are not done after `timeout` seconds in all."""
    until = time.monotonic() + timeout
    return [call.result(until - time.monotonic()) for call in calls]


@dataclass(frozen=True)
class Mount:
    """One mounted file system. at: the mount point. kind: "nfs4". source: "filer:/export"."""

    at: str
    kind: str
    source: str

    @property
    def network(self) -> bool:
        """Whether other nodes may mount the same file system. FUSE counts: most of what it serves is remote."""
        return _NETWORK.fullmatch(self.kind) is not None

    def __str__(self) -> str:
        return f"{self.kind} {self.source} on {self.at}"


def read_mount_table() -> tuple[Mount, ...]:
    """Return this process's mounts in mount order. Asks no file system, so it works while one hangs."""
    return parse_mountinfo(read_text("/proc/self/mountinfo"))


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse proc_pid_mountinfo(5). A later mount at the same point hides the earlier ones."""
    found = []
    for line in text.splitlines():
        place, _, rest = line.partition(" - ")
        fields, what = place.split(" "), rest.split(" ")
        if len(fields) > 4 and len(what) > 1:
            found.append(Mount(_unescape(fields[4]), what[0], _unescape(what[1])))
    return tuple(found)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount that holds an absolute path without symlinks."""
    above = {str(PurePosixPath(path)), *map(str, PurePosixPath(path).parents)}
    over = [mount for mount in mounts if mount.at in above]
    longest = max((len(mount.at) for mount in over), default=0)
    return next((mount for mount in reversed(over) if len(mount.at) == longest), None)


def _unescape(field: str) -> str:
    return _OCTAL_ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)


_KEPT = 4096  # bytes of output; the rest is read and discarded
_POLL = 0.05  # seconds between two checks whether a silent program has ended
_REAP = 2.0  # seconds for a killed program to disappear; one that hangs in the kernel is left behind
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


_GROUPS: set[int] = set()  # process groups of running programs


@contextlib.contextmanager
def tracked(group: int) -> Iterator[None]:
    """Let `end_all` end this process group as well, inside the `with` block."""
    _GROUPS.add(group)
    try:
        yield
    finally:
        _GROUPS.discard(group)


def end_all() -> None:
    """End all tracked programs before this process exits: a diagnostic must not load the GPUs of the next training."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in tuple(_GROUPS):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        time.sleep(_POLL if number == signal.SIGTERM else 0.0)


@dataclass(frozen=True)
class Ran:
    """code: the exit code, negative for a signal; None if it did not start (`error`) or was killed at its deadline.
    output: the first line that it printed, without control characters. took: seconds."""

    program: str
    code: int | None = None
    output: str = ""
    took: float = 0.0
    error: str = ""


def environment(node: str, tier: str) -> dict[str, str]:
    """Return its environment: all Slurm variables of the job, and a PATH, which a Prolog does not have."""
    kept = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith("SLURM")}
    return kept | {"PATH": os.environ.get("PATH") or _PATH, "TRANSOM_NODE": node, "TRANSOM_TIER": tier}


def run(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Ran:
    """Run a program for at most `seconds`. Never raises.

    When it returns, the program's whole process group is dead. A program that hangs in the kernel cannot be killed: it
    is left behind and blocks nobody.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Ran(argv[0], error=getattr(error, "strerror", None) or str(error))
    assert process.stdout is not None
    with process.stdout as pipe, tracked(process.pid):
        data, ended = _read(process, pipe.fileno(), began + seconds)
        took = time.monotonic() - began
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP)
    lines = (clean(line) for line in data.decode("utf-8", "replace").splitlines())
    output = next((line for line in lines if line), "")
    return Ran(argv[0], process.returncode if ended else None, output, took)


def _read(process: subprocess.Popen[bytes], pipe: int, until: float) -> tuple[bytes, bool]:
    """Return the start of the output and whether the program ended by itself. Does not wait for children that keep the
    pipe open."""
    output, is_open = b"", True
    while (left := until - time.monotonic()) > 0:
        wait = min(left, _POLL)
        if is_open and select.select([pipe], [], [], wait)[0]:
            data = os.read(pipe, 65536)
            is_open = bool(data)
            output += data[: _KEPT - len(output)]
        elif _has_ended(process.pid):
            return output, True
        elif not is_open:
            time.sleep(wait)
    return output, _has_ended(process.pid)


def _has_ended(pid: int) -> bool:
    """Check without reaping: until its group is killed, the PID must not be reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
