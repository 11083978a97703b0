"""The host's memory: what is left of it, and is it enough for the job's snapshots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.sysfiles import read_text

_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Bytes. shared: in tmpfs and in memory that processes share, where snapshots are held too. swapped: in swap."""

    available: int
    total: int
    shared: int = 0
    swapped: int = 0


@dataclass(frozen=True)
class MemoryLimits:
    """Fractions of the host's memory that are available.

    memory_low, memory_out: no source; ranks are killed for memory within seconds from the second. swap_used: a fraction
    of the memory too; no source: pages that nobody wanted for days lie in swap on hosts that are well.
    """

    memory_low: float = 0.05
    memory_out: float = 0.01
    swap_used: float = 0.05


def read_memory() -> Memory | None:
    """None when the host does not tell."""
    return parse(read_text("/proc/meminfo"))


def parse(meminfo: str) -> Memory | None:
    found = {name: int(kib) * 1024 for name, kib in _LINE.findall(meminfo)}
    if "MemAvailable" not in found or not found.get("MemTotal"):
        return None
    swapped = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
    return Memory(found["MemAvailable"], found["MemTotal"], found.get("Shmem", 0), swapped)


def judge_memory(node: str, memory: Memory | None, limits: MemoryLimits, snapshots: int = 0) -> Finding:
    """snapshots: bytes that the job's snapshots are to take. `memory_low` of the host is to be left beside them."""
    if memory is None:
        return Finding("memory", Verdict.UNKNOWN, node, "/proc/meminfo cannot be read")
    left = memory.available / memory.total
    said = f"{_mib(memory.available)} of {_mib(memory.total)} MiB of memory are available ({left:.1%})"
    if left < limits.memory_out:
        return Finding("memory", Verdict.SUSPECT, node, said, Remedy.AVOID)
    needed = snapshots + int(memory.total * limits.memory_low)
    if snapshots and memory.available < needed:
        said += f", the job's snapshots and what must be left beside them take {_mib(needed)} MiB"
        if memory.total < needed:
            return Finding("memory", Verdict.MONITOR, node, said, Remedy.SETUP)
        if memory.available + memory.shared >= needed:  # it may be the run's own, held since the last attempt
            said += f"; {_mib(memory.shared)} MiB are held as shared memory"
            return Finding("memory", Verdict.MONITOR, node, said, Remedy.WATCH)
        return Finding("memory", Verdict.SUSPECT, node, said, Remedy.AVOID)
    low = left < limits.memory_low
    return Finding("memory", Verdict.MONITOR if low else Verdict.PASS, node, said)


def judge_swap(node: str, memory: Memory | None, limits: MemoryLimits) -> Finding:
    if memory is None:
        return Finding("swap", Verdict.UNKNOWN, node, "/proc/meminfo cannot be read")
    used = memory.swapped / memory.total
    verdict = Verdict.MONITOR if used >= limits.swap_used else Verdict.PASS
    return Finding("swap", verdict, node, f"{_mib(memory.swapped)} MiB are in swap ({used:.1%} of the memory)")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}"
