"""How much of its time a process could have run but got no processor, since others of its host had them.

A host that is busy with something else is no slow device and no slow link. What a quota of the process's own control
group withholds is not counted here: that makes its node slow for the training too, whose processes have the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

MOST = 0.95  # of the time: what is measured in the rest of it tells nothing more


class Waiting:
    """Counts since it was made, for all threads of this process; several that wait at once add up."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(_cpu_groups(proc))
        self._begun, self._waited = time.monotonic(), self._seconds()

    def share(self) -> float:
        """Of the time since, at most `MOST`; 0.0 where the kernel does not count."""
        waited = (self._seconds() - self._waited) / max(time.monotonic() - self._begun, 1e-9)
        return min(max(waited, 0.0), MOST)

    def _seconds(self) -> float:
        total = 0
        for thread in (self._proc / "self" / "task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended, or this kernel does not count
                total += int((thread / "schedstat").read_text().split()[1])
        return total / 1e9 - max((_throttled(group) for group in self._groups), default=0.0)


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


def _throttled(group: Path) -> float:
    """Seconds for which its quota has stopped its processes."""
    with contextlib.suppress(OSError, ValueError):
        told = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return int(told.get("throttled_usec", 0)) / 1e6 + int(told.get("throttled_time", 0)) / 1e9
    return 0.0
