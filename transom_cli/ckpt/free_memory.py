"""How much memory this process may still take, by the machine and its control groups, and when it runs short.

Then snapshots give way, before the kernel kills a trainer. Signs: little is left below a limit; the control group's
`memory.events` count a limit that was reached; its `memory.pressure` (PSI) says that tasks stall for memory while not
much is free.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_LEAST, _MOST = 64 << 20, 1 << 30  # bytes of the reserve


def free_memory(proc: Path = Path("/proc"), cgroups: Path = _ROOT) -> int:
    """Bytes. A control group that goes over its limit is killed by the kernel, so nothing is taken beyond it."""
    free = _meminfo(proc, "MemAvailable")
    return min([free, *(most - used for most, used in _groups(proc, cgroups))])


def reserve(proc: Path = Path("/proc"), cgroups: Path = _ROOT) -> int:
    """Bytes to leave free for the trainer: a sixteenth of what its job may use, within limits."""
    limit = min([_meminfo(proc, "MemTotal"), *(most for most, _ in _groups(proc, cgroups))])
    return min(_MOST, max(_LEAST, limit // 16))


def _meminfo(proc: Path, name: str) -> int:
    meminfo = (proc / "meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group of this process that has a limit, from its own up to the root's."""
    try:
        groups = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups:
        _, kinds, name = line.split(":", 2)
        if kinds == "":
            top, limit, used, prefix = cgroups, "memory.max", "memory.current", ""
        elif "memory" in kinds.split(","):
            top, limit, used = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            prefix = "total_"
        else:
            continue
        group = top / name.lstrip("/")
        while group != top.parent:
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max", or no such file: no limit here
                most = int((group / limit).read_text())
                stat = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
                cache = int(stat[prefix + "inactive_file"]) + int(stat[prefix + "active_file"])  # given up when needed
                yield most, int((group / used).read_text()) - cache
            group = group.parent


SPARE = reserve()  # bytes that stay free, for the trainer itself and its page cache


STALLED = 10.0  # percent of the last ten seconds in which some task waited for memory
_FASTEST = 4e9  # bytes per second by which a trainer may grow
_SOONEST, _LATEST = 0.05, 1.0  # seconds between two looks
_COUNTED = ("high", "max", "oom")


class Pressure:
    """The signs for this process's control group. For one thread."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"),
        free: Callable[[], int] = free_memory,
    ) -> None:  # fmt: skip
        self._free = free
        self._group: Path | None = None  # of version 2; version 1 has neither file
        with contextlib.suppress(OSError):
            for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
                if line.startswith("0::"):
                    self._group = cgroups / line[3:].lstrip("/")
        self._events = self._read_events()

    def look(self) -> tuple[bool, float]:
        """Return whether memory is short, and the seconds until the next look: sooner if less is free."""
        free, before = self._free(), self._events
        self._events = self._read_events()
        short = free < SPARE // 2 or self._events > before or (free < 4 * SPARE and self._stalled() > STALLED)
        return short, min(_LATEST, max(_SOONEST, (free - SPARE // 2) / _FASTEST))

    def _read_events(self) -> int:
        """How often the group reached a limit."""
        if self._group is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            rows = dict(row.split() for row in (self._group / "memory.events").read_text().splitlines())
            return sum(int(rows.get(name, 0)) for name in _COUNTED)
        return self.__dict__.get("_events", 0)

    def _stalled(self) -> float:
        if self._group is None:
            return 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            some = (self._group / "memory.pressure").read_text().splitlines()[0].split()
            return float(some[1].removeprefix("avg10="))
        return 0.0


class PressureWatch:
    """Calls `relieve` whenever memory is short, from a thread of its own."""

    def __init__(self, relieve: Callable[[], object], pressure: Pressure | None = None) -> None:
        self._relieve, self._pressure = relieve, pressure or Pressure()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="transom-pressure", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        pause = _SOONEST
        while not self._closed.wait(pause):
            with contextlib.suppress(OSError, ValueError, KeyError):  # a look that fails finds nothing
                short, pause = self._pressure.look()
                if short:
                    self._relieve()
