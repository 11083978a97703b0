"""How much memory this process may still take: the minimum over the machine and its control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def free_memory(proc: Path = Path("/proc"), cgroups: Path = _ROOT) -> int:
    """Bytes. A control group that goes over its limit is killed by the kernel, so nothing is taken beyond it."""
    free = _available((proc / "meminfo").read_text(encoding="ascii"))
    return min([free, *_left(proc, cgroups)])


def _available(meminfo: str) -> int:
    lines = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def _left(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the free bytes of each control group of this process, from its own up to the root's."""
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
                yield most - int((group / used).read_text()) + cache
            group = group.parent
