"""The host, by what its kernel reports at once: memory, memory errors, load, uptime, clock. No read here waits."""

import os
import re
import time
from dataclasses import dataclass

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.checks.clock import Clock, judge_clock, read_clock
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.system import names, read_number, read_text, sysfs

FINDINGS = ("memory", "swap", "edac", "load", "uptime", "clocksource", "clock_sync")
EDAC, EDAC_NEW = "edac", "edac_new"
_STEAL, _GUEST = 7, 8  # columns of "cpu" in /proc/stat; guest time is already counted in user time, proc(5)
_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Bytes. shared: tmpfs and shared memory, where snapshots live too. swapped: in swap."""

    available: int
    total: int
    shared: int = 0
    swapped: int = 0


@dataclass(frozen=True)
class Controller:
    """One memory controller. corrected, uncorrected: errors since the boot, or since the counter was reset."""

    name: str
    corrected: int
    uncorrected: int


@dataclass(frozen=True)
class MachineReading:
    """None: unreadable here. booted: seconds since the boot. ticks: CPU time of all CPUs since the boot, and the part
    that the hypervisor gave to other virtual machines."""

    memory: Memory | None
    edac: tuple[Controller, ...]
    load: float
    cpus: int
    ticks: tuple[int, int] | None
    booted: float
    clock: Clock


@dataclass(frozen=True)
class MemoryLimits:
    """Fractions of the host's memory.

    memory_low, memory_out: available memory; no source; from the second on, ranks are killed within seconds.
    swap_used: no source; healthy hosts keep pages in swap that nobody used for days.
    """

    memory_low: float = 0.05
    memory_out: float = 0.01
    swap_used: float = 0.05


@dataclass(frozen=True)
class MachineLimits(MemoryLimits):
    """load_per_cpu: no source; a training loads a host with about one task per CPU that it uses. uptime: seconds; gcm
    asks whether a node has been up for 600 s, because one that has just come back may fail again. steal: a fraction of
    CPU time; no source. edac_corrected: new corrected errors between two readings; mcelog's default for one DIMM is 10
    in 24 h."""

    load_per_cpu: float = 2.0
    uptime: float = 600.0
    steal: float = 0.05
    edac_corrected: int = 10


def read_machine(about: About) -> MachineReading:
    return MachineReading(
        memory=read_memory(),
        edac=read_edac(),
        load=os.getloadavg()[0],
        cpus=os.cpu_count() or 1,
        ticks=_parse_ticks(read_text("/proc/stat")),
        booted=time.clock_gettime(time.CLOCK_BOOTTIME),
        clock=read_clock(),
    )


def read_memory() -> Memory | None:
    """Return None if the host does not report it."""
    return parse_meminfo(read_text("/proc/meminfo"))


def parse_meminfo(text: str) -> Memory | None:
    found = {name: int(kib) * 1024 for name, kib in _MEMINFO.findall(text)}
    if "MemAvailable" not in found or not found.get("MemTotal"):
        return None
    swapped = found.get("SwapTotal", 0) - found.get("SwapFree", 0)
    return Memory(found["MemAvailable"], found["MemTotal"], found.get("Shmem", 0), swapped)


def read_edac() -> tuple[Controller, ...]:
    """Read memory error counters (kernel docs, admin-guide/RAS). Virtual machines and most clouds have none."""
    root = sysfs("devices/system/edac/mc")
    found = []
    for name in names(root) or ():
        corrected = read_number(root / name / "ce_count")
        uncorrected = read_number(root / name / "ue_count")
        if name.startswith("mc") and corrected is not None and uncorrected is not None:
            found.append(Controller(name, corrected, uncorrected))
    return tuple(found)


def _parse_ticks(stat: str) -> tuple[int, int] | None:
    columns = stat.partition("\n")[0].split()[1:]
    if len(columns) <= _STEAL or not all(column.isdecimal() for column in columns):
        return None
    return sum(int(column) for column in columns[:_GUEST]), int(columns[_STEAL])


def judge_machine(node: str, reading: MachineReading, about: About, limits: MachineLimits) -> tuple[Finding, ...]:
    return (
        judge_memory(node, reading.memory, limits, about.snapshot_bytes),
        judge_swap(node, reading.memory, limits),
        judge_edac(node, reading.edac),
        _judge_load(node, reading, limits),
        judge_uptime(node, reading.booted, limits.uptime),
        *judge_clock(node, reading.clock),
    )


def judge_machine_changes(
    node: str, former: MachineReading, reading: MachineReading, seconds: float, about: About, limits: MachineLimits
) -> tuple[Finding, ...]:
    """Judge new memory errors ("edac_new") and stolen CPU time ("steal") in the `seconds` between two readings."""
    found = list(judge_edac_changes(node, former.edac, reading.edac, seconds, limits))
    if former.ticks is not None and reading.ticks is not None and reading.ticks[0] > former.ticks[0]:
        share = (reading.ticks[1] - former.ticks[1]) / (reading.ticks[0] - former.ticks[0])
        verdict = Verdict.MONITOR if share >= limits.steal else Verdict.PASS
        text = f"{share:.1%} of CPU time went to other virtual machines (steal) in {seconds:.0f} s"
        found.append(Finding("steal", verdict, node, text))
    return tuple(found)


def judge_memory(node: str, memory: Memory | None, limits: MemoryLimits, snapshots: int = 0) -> Finding:
    """Judge available memory. `snapshots` bytes for the job's snapshots must fit beside `memory_low` of the host."""
    if memory is None:
        return Finding("memory", Verdict.UNKNOWN, node, "/proc/meminfo cannot be read")
    free = memory.available / memory.total
    text = f"{_mib(memory.available)} of {_mib(memory.total)} MiB of memory are available ({free:.1%})"
    if free < limits.memory_out:
        return Finding("memory", Verdict.SUSPECT, node, text, Remedy.AVOID)
    needed = snapshots + int(memory.total * limits.memory_low)
    if snapshots and memory.available < needed:
        text += f"; the job's snapshots and a reserve need {_mib(needed)} MiB"
        if memory.total < needed:
            return Finding("memory", Verdict.MONITOR, node, text, Remedy.SETUP)
        if memory.available + memory.shared >= needed:  # it may be this run's own, kept from the last attempt
            text += f"; {_mib(memory.shared)} MiB are in use as shared memory"
            return Finding("memory", Verdict.MONITOR, node, text, Remedy.WATCH)
        return Finding("memory", Verdict.SUSPECT, node, text, Remedy.AVOID)
    low = free < limits.memory_low
    return Finding("memory", Verdict.MONITOR if low else Verdict.PASS, node, text)


def judge_swap(node: str, memory: Memory | None, limits: MemoryLimits) -> Finding:
    if memory is None:
        return Finding("swap", Verdict.UNKNOWN, node, "/proc/meminfo cannot be read")
    used = memory.swapped / memory.total
    verdict = Verdict.MONITOR if used >= limits.swap_used else Verdict.PASS
    return Finding("swap", verdict, node, f"{_mib(memory.swapped)} MiB are in swap ({used:.1%} of memory)")


def judge_edac(node: str, found: tuple[Controller, ...]) -> Finding:
    """Report totals. They may predate the job, so `judge_edac_changes` judges new errors."""
    if not found:
        return not_applicable(EDAC, node, "no driver counts memory errors on this host")
    worst = max(found, key=lambda c: (c.uncorrected, c.corrected))
    text = ", ".join(f"{c.name}: ue_count {c.uncorrected}, ce_count {c.corrected}" for c in found)
    if worst.uncorrected:
        return Finding(EDAC, Verdict.MONITOR, node, f"{text} since the boot", Remedy.WATCH, worst.name)
    return Finding(EDAC, Verdict.PASS, node, text)


def judge_edac_changes(
    node: str, former: tuple[Controller, ...], now: tuple[Controller, ...], seconds: float, limits: MachineLimits
) -> tuple[Finding, ...]:
    """Judge new errors. One uncorrected error is proof of a fault: data was lost."""
    before = {c.name: c for c in former}
    found = []
    for one in now:
        then = before.get(one.name)
        if then is None:
            continue
        lost, corrected = one.uncorrected - then.uncorrected, one.corrected - then.corrected
        if lost > 0:
            text = f"{one.name}: uncorrected errors, ue_count +{lost} in {seconds:.0f} s ({one.uncorrected} in total)"
            found.append(Finding(EDAC_NEW, Verdict.FAIL, node, text, Remedy.REPAIR, one.name))
        elif corrected >= limits.edac_corrected:
            text = f"{one.name}: corrected errors, ce_count +{corrected} in {seconds:.0f} s ({one.corrected} in total)"
            found.append(Finding(EDAC_NEW, Verdict.MONITOR, node, text, Remedy.WATCH, one.name))
    return tuple(found)


def judge_uptime(node: str, booted: float, limit: float) -> Finding:
    verdict = Verdict.MONITOR if booted < limit else Verdict.PASS
    return Finding("uptime", verdict, node, f"it booted {booted:.0f} s ago")


def _judge_load(node: str, reading: MachineReading, limits: MachineLimits) -> Finding:
    text = f"load {reading.load:.1f} on {reading.cpus} CPUs"
    if reading.load > reading.cpus * limits.load_per_cpu:
        return Finding("load", Verdict.MONITOR, node, text, Remedy.WATCH)
    return Finding("load", Verdict.PASS, node, text)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}"


CHECK = Check(
    name="host",
    reader="transom_cli.health.checks.host:read_machine",
    judge=judge_machine,
    reading=MachineReading,
    limits=MachineLimits,
    seconds=5.0,
    tier=Tier.WATCH,
    findings=FINDINGS,
    overdue="reading /proc and /sys",
    changes=judge_machine_changes,
)
