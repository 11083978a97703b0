"""How much memory this process may still take: the minimum over the machine and its control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
