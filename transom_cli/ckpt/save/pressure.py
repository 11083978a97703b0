"""Notice that memory runs short on this node, so that snapshots give way before the kernel kills a trainer.

Signs: little is left below a limit (`free_memory`); the control group's `memory.events` count a limit that was reached;
its `memory.pressure` (PSI) says that tasks stall for memory while not much is free.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from transom_cli.ckpt.free_memory import free_memory
from transom_cli.ckpt.save.buffer import SPARE

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
