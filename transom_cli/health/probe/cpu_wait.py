"""How long a process could have run but got no CPU, because other processes of its host had them.

A busy host does not mean a slow device or a slow link. Time that a quota of the process's own cgroup withholds is not
counted as waiting: the training's processes have the same quota, so the node is slow for them too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Waiting:
    """Counts waiting since its creation, for all threads of this process; threads that wait at once add up."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(_cpu_groups(proc))
        self._begun, self._waited = time.monotonic(), self._seconds()

    def share(self) -> float:
        """Return the share of the time since then, at most 1.0; 0.0 if the kernel does not count."""
        waited = (self._seconds() - self._waited) / max(time.monotonic() - self._begun, 1e-9)
        return min(max(waited, 0.0), 1.0)

    def _seconds(self) -> float:
        waited = 0.0
        for thread in (self._proc / "self" / "task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended, or this kernel does not count
                waited += _waited((thread / "schedstat").read_bytes())
        stopped = 0.0
        for group in self._groups:
            with contextlib.suppress(OSError):
                stopped = max(stopped, _stopped((group / "cpu.stat").read_text()))
        return waited - stopped


class Stopwatch:
    """Times this thread's work without the time in which it waited for a CPU. A context manager.

    Each reading takes a few microseconds.
    """

    def __init__(self) -> None:
        self._files = list(_opened(Path("/proc/thread-self/schedstat")))
        self._groups = [file for group in _cpu_groups(Path("/proc")) for file in _opened(group / "cpu.stat")]
        self._made = self._begun = self._read()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (*self._files, *self._groups):
            os.close(file)

    def start(self) -> None:
        self._begun = self._read()

    def seconds(self) -> float:
        """Return seconds since `start`; never less than the thread computed, however the kernel rounds its counts."""
        return self._own(self._begun)

    def whole(self) -> float:
        """Return seconds since creation. A stop mostly begins between two readings, so only this includes it."""
        return self._own(self._made)

    def share(self) -> float:
        """Return the share of the time since creation for which the thread waited."""
        wall, _, waited = self._since(self._made)
        return min(max(waited / wall, 0.0), 1.0)

    def _own(self, then: tuple[float, float, float]) -> float:
        wall, computed, waited = self._since(then)
        return max(wall - max(waited, 0.0), computed, 1e-9)

    def _since(self, then: tuple[float, float, float]) -> tuple[float, float, float]:
        before, now = then, self._read()
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def _read(self) -> tuple[float, float, float]:
        waited = sum(_waited(os.pread(file, 4096, 0)) for file in self._files)
        stopped = max((_stopped(os.pread(file, 4096, 0).decode()) for file in self._groups), default=0.0)
        return time.perf_counter(), time.thread_time(), waited - stopped


def _opened(path: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield os.open(path, os.O_RDONLY)


def _cpu_groups(proc: Path) -> Iterator[Path]:
    """Yield the folders of the process's cgroup and its parents, as far as they are visible here."""
    try:
        mounts = [line.split() for line in (proc / "self" / "mounts").read_text().splitlines()]
        member = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in member:
        if controllers and "cpu" not in controllers.split(","):
            continue
        kind = "cgroup" if controllers else "cgroup2"
        for _, root, type_, options, *_ in mounts:
            if type_ == kind and (not controllers or "cpu" in options.split(",")):
                folder = Path(root) / path.lstrip("/")
                yield from (one for one in (folder, *folder.parents) if one.is_relative_to(root))


def _waited(schedstat: bytes) -> float:
    """Return the seconds for which a thread has waited for a CPU: the second number, in nanoseconds."""
    return int(schedstat.split()[1]) / 1e9


def _stopped(stat: str) -> float:
    """Return the seconds for which a cgroup's quota stopped its processes, in the format of cgroup v1 or v2."""
    counts = dict(line.split() for line in stat.splitlines())
    return int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
