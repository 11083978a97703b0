"""How much of its time a process could have run but got no processor, since others of its host had them.

A host that is busy with something else is no slow device and no slow link. What a quota of the process's own control
group withholds is not counted here: that makes its node slow for the training too, whose processes have the same.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Waiting:
    """Counts since it was made, for all threads of this process; several that wait at once add up."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(_cpu_groups(proc))
        self._begun, self._waited = time.monotonic(), self._seconds()

    def share(self) -> float:
        """Of the time since, at most 1.0; 0.0 where the kernel does not count."""
        waited = (self._seconds() - self._waited) / max(time.monotonic() - self._begun, 1e-9)
        return min(max(waited, 0.0), 1.0)

    def _seconds(self) -> float:
        waited = 0.0
        for thread in (self._proc / "self" / "task").iterdir():
            with contextlib.suppress(OSError):  # it has ended, or this kernel does not count
                waited += _waited((thread / "schedstat").read_bytes())
        stopped = 0.0
        for group in self._groups:
            with contextlib.suppress(OSError):
                stopped = max(stopped, _stopped((group / "cpu.stat").read_text()))
        return waited - stopped


class Stopwatch:
    """Times what this thread does, again and again, without what it waited for a processor. A context manager.

    A reading costs some microseconds.
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
        """Since it was started; never less than the thread computed, whatever the kernel's counts are rounded to."""
        return self._own(self._begun)

    def whole(self) -> float:
        """The same, since it was made. A stop mostly begins between two readings: that is in here alone."""
        return self._own(self._made)

    def share(self) -> float:
        """Of the time since it was made: for which the thread waited."""
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
    """The folders of the process's control group and of those above it, as far as they can be seen here."""
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
    """Seconds that a thread has waited for a processor: the second number, in nanoseconds."""
    return int(schedstat.split()[1]) / 1e9


def _stopped(stat: str) -> float:
    """Seconds for which a group's quota has stopped its processes, as either version of control groups tells it."""
    told = dict(line.split() for line in stat.splitlines())
    return int(told.get("throttled_usec", 0)) / 1e6 + int(told.get("throttled_time", 0)) / 1e9
