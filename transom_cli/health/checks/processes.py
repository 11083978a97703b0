"""Stuck processes: zombies that nobody reaps, and processes blocked in the kernel (state D of proc(5)).

Every process is in state D for moments while it reads from a disk, so one look proves nothing. After two looks, only
processes that were not scheduled in between are reported: their context switch count did not change.
"""

import os
import time
from dataclasses import dataclass

from transom_cli.core.log_lines import clean
from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.system import names, read_text
from transom_cli.plural import some

FINDINGS = ("processes",)
BETWEEN = 1.0  # seconds between the two looks, if the first one finds a process in state D
_LISTED = 3
_KEPT = 100
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stuck:
    """state: Z or D. age: seconds since its start. threads: a zombie with more than one is still alive, most often in a
    driver call. wchan: the kernel function it waits in, if that is readable."""

    pid: int
    name: str
    state: str
    parent: int
    age: float
    threads: int
    wchan: str = ""


@dataclass(frozen=True)
class ProcessesReading:
    """total: processes on the host. stuck: the oldest hundred of the stuck ones."""

    total: int = 0
    stuck: tuple[Stuck, ...] = ()


@dataclass(frozen=True)
class ProcessesLimits:
    """stuck_age: seconds since the process started; gcm's check-zombie uses 300 s."""

    stuck_age: float = 300.0


def read_processes(about: About) -> ProcessesReading:
    pids = [name for name in names("/proc") or () if name.isdecimal()]
    found = {pid: one for pid in pids if (one := _read_stuck(pid)) is not None}
    blocked = {pid: _read_switches(pid) for pid, one in found.items() if one.state == "D"}
    if blocked:
        time.sleep(BETWEEN)
    for pid, switches in blocked.items():
        again = _read_stuck(pid)
        if again is None or again.state != "D" or not switches or _read_switches(pid) != switches:
            del found[pid]
    oldest = sorted(found.values(), key=lambda one: -one.age)
    return ProcessesReading(len(pids), tuple(oldest[:_KEPT]))


def _read_stuck(pid: str) -> Stuck | None:
    """Return None for a healthy process, one that has ended, and kernel threads."""
    name, _, rest = read_text(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20 or fields[0] not in "ZD" or int(fields[6]) & _KERNEL_THREAD:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS
    wchan = read_text(f"/proc/{pid}/wchan") if fields[0] == "D" else ""
    return Stuck(int(pid), clean(name), fields[0], int(fields[1]), age, int(fields[17]), "" if wchan == "0" else wchan)


def _read_switches(pid: str) -> tuple[str, ...]:
    lines = read_text(f"/proc/{pid}/status").splitlines()
    return tuple(line for line in lines if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt")))


def judge_processes(node: str, reading: ProcessesReading, about: About, limits: ProcessesLimits) -> tuple[Finding, ...]:
    """Never more than MONITOR: their owner and purpose are unknown. The GPU check reports those that hold a GPU."""
    old = [one for one in reading.stuck if one.age >= limits.stuck_age]
    if not old:
        text = f"none of {reading.total} processes is a zombie or blocked in the kernel for {limits.stuck_age:.0f} s"
        return (Finding("processes", Verdict.PASS, node, text),)
    blocked, zombies = (sum(one.state == state for one in old) for state in "DZ")
    text = f"blocked in the kernel: {blocked}, zombies: {zombies}; {some(map(_describe, old), _LISTED)}"
    return (Finding("processes", Verdict.MONITOR, node, text, Remedy.WATCH),)


def _describe(one: Stuck) -> str:
    where = f" in {one.wchan}" if one.wchan else ""
    alive = f", {one.threads} threads" if one.state == "Z" and one.threads > 1 else ""
    return f"{one.name} ({one.pid}, {one.state}{where}{alive}, child of {one.parent}, started {one.age:.0f} s ago)"


CHECK = Check(
    name="processes",
    reader="transom_cli.health.checks.processes:read_processes",
    judge=judge_processes,
    reading=ProcessesReading,
    limits=ProcessesLimits,
    seconds=10.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="reading /proc",
)
