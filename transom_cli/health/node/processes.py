"""Processes that are stuck: dead ones that nobody reaps, and ones that hang in the kernel (state D of proc(5)).

A process is in D for moments whenever it reads from a disk, so one look proves nothing. Two looks are made, and only
who has not been scheduled between them is told: the number of its context switches stands still.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from transom_cli.core.rootline import clean
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.sysfiles import names, read_text

CHECK = "processes"
FINDINGS = (CHECK,)
BETWEEN = 1.0  # seconds between the two looks, when the first one finds somebody in D
_TOLD = 3
_KEPT = 100
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stuck:
    """state: Z or D. age: seconds since it was started. threads: that it has; a zombie with more than one still lives,
    most often in a driver's call. wchan: the kernel's function that it waits in, where that may be known."""

    pid: int
    name: str
    state: str
    parent: int
    age: float
    threads: int
    wchan: str = ""


@dataclass(frozen=True)
class ProcessesReading:
    """total: processes on the host. stuck: the oldest hundred of those that are dead or hang."""

    total: int = 0
    stuck: tuple[Stuck, ...] = ()


@dataclass(frozen=True)
class ProcessesLimits:
    """stuck_age: seconds since its start; gcm's check-zombie tells of those from 300 s on."""

    stuck_age: float = 300.0


def read_processes(about: About) -> ProcessesReading:
    pids = [name for name in names("/proc") or () if name.isdecimal()]
    found = {pid: one for pid in pids if (one := _stuck(pid)) is not None}
    hang = {pid: _switches(pid) for pid, one in found.items() if one.state == "D"}
    if hang:
        time.sleep(BETWEEN)
    for pid, switches in hang.items():
        again = _stuck(pid)
        if again is None or again.state != "D" or not switches or _switches(pid) != switches:
            del found[pid]
    oldest = sorted(found.values(), key=lambda one: -one.age)
    return ProcessesReading(len(pids), tuple(oldest[:_KEPT]))


def judge_processes(node: str, reading: ProcessesReading, about: About, limits: ProcessesLimits) -> tuple[Finding, ...]:
    """Never more than MONITOR: whose they are is not known, nor what for. A leftover that holds a GPU is told there."""
    old = [one for one in reading.stuck if one.age >= limits.stuck_age]
    hanging, dead = (sum(one.state == state for one in old) for state in "DZ")
    if not old:
        said = f"none of {reading.total} processes has been dead or stuck in the kernel for long"
        return (Finding(CHECK, Verdict.PASS, node, said),)
    said = f"hanging in the kernel: {hanging}, dead and not reaped: {dead}; "
    said += ", ".join(_words(one) for one in old[:_TOLD]) + (f" and {len(old) - _TOLD} more" if old[_TOLD:] else "")
    return (Finding(CHECK, Verdict.MONITOR, node, said, Remedy.WATCH),)


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding(CHECK, Verdict.UNKNOWN, node, f"reading /proc has not ended within {waited:.0f} s")


def _words(one: Stuck) -> str:
    where = f" in {one.wchan}" if one.wchan else ""
    living = f", {one.threads} threads" if one.state == "Z" and one.threads > 1 else ""
    return f"{one.name} ({one.pid}, {one.state}{where}{living}, child of {one.parent}, started {one.age:.0f} s ago)"


def _stuck(pid: str) -> Stuck | None:
    """None for one that is well, is gone, or is the kernel's own."""
    name, _, rest = read_text(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20 or fields[0] not in "ZD" or int(fields[6]) & _KERNEL_THREAD:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS
    wchan = read_text(f"/proc/{pid}/wchan") if fields[0] == "D" else ""
    return Stuck(int(pid), clean(name), fields[0], int(fields[1]), age, int(fields[17]), "" if wchan == "0" else wchan)


def _switches(pid: str) -> tuple[str, ...]:
    lines = read_text(f"/proc/{pid}/status").splitlines()
    return tuple(line for line in lines if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt")))
