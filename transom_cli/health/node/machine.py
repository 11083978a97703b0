"""Is the host well, by what its kernel says at once? Memory, memory errors, load, uptime, clock: nothing here waits."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.clock import Clock, judge_clock, read_clock
from transom_cli.health.node.edac import Controller, EdacLimits, judge_edac, judge_edac_changes, read_edac
from transom_cli.health.node.memory import Memory, MemoryLimits, judge_memory, judge_swap, read_memory
from transom_cli.health.node.sysfiles import read_text

FINDINGS = ("memory", "swap", "edac", "load", "uptime", "clocksource", "clock_sync")
_STEAL, _GUEST = 7, 8  # columns of "cpu" in /proc/stat; from the second on they are counted in others, proc(5)


@dataclass(frozen=True)
class MachineReading:
    """None: it cannot be read here. booted: seconds since the boot.

    ticks: of all CPUs since the boot, and those of them that the hypervisor gave to others.
    """

    memory: Memory | None
    edac: tuple[Controller, ...]
    load: float
    cpus: int
    ticks: tuple[int, int] | None
    booted: float
    clock: Clock


@dataclass(frozen=True)
class MachineLimits(MemoryLimits, EdacLimits):
    """load_per_cpu: no source; a training at work loads a host with about one task for each CPU that it uses.

    uptime: seconds; gcm asks whether a node has been up for 600 s: one that has just come back may go again. steal: a
    fraction of the CPUs' time; no source.
    """

    load_per_cpu: float = 2.0
    uptime: float = 600.0
    steal: float = 0.05


def read_machine(about: About) -> MachineReading:
    return MachineReading(
        memory=read_memory(),
        edac=read_edac(),
        load=os.getloadavg()[0],
        cpus=os.cpu_count() or 1,
        ticks=_ticks(read_text("/proc/stat")),
        booted=time.clock_gettime(time.CLOCK_BOOTTIME),
        clock=read_clock(),
    )


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
    node: str, former: MachineReading, reading: MachineReading, seconds: float, limits: MachineLimits
) -> tuple[Finding, ...]:
    """What happened within `seconds` ("edac_new"), and how much of the CPUs' time was stolen in them ("steal")."""
    found = list(judge_edac_changes(node, former.edac, reading.edac, seconds, limits))
    if former.ticks is not None and reading.ticks is not None and reading.ticks[0] > former.ticks[0]:
        share = (reading.ticks[1] - former.ticks[1]) / (reading.ticks[0] - former.ticks[0])
        verdict = Verdict.MONITOR if share >= limits.steal else Verdict.PASS
        said = f"{share:.1%} of the CPUs' time went to other virtual machines within {seconds:.0f} s (steal)"
        found.append(Finding("steal", verdict, node, said))
    return tuple(found)


def judge_uptime(node: str, booted: float, limit: float) -> Finding:
    verdict = Verdict.MONITOR if booted < limit else Verdict.PASS
    return Finding("uptime", verdict, node, f"it booted {booted:.0f} s ago")


def overdue(node: str, waited: float, about: About) -> Finding:
    """Nothing that is read here waits: whoever does not get this far is starved of CPU, or its kernel is in trouble."""
    return Finding("host", Verdict.UNKNOWN, node, f"reading /proc and /sys has not ended within {waited:.0f} s")


def _judge_load(node: str, reading: MachineReading, limits: MachineLimits) -> Finding:
    said = f"load {reading.load:.1f} on {reading.cpus} CPUs"
    if reading.load > reading.cpus * limits.load_per_cpu:
        return Finding("load", Verdict.MONITOR, node, said, Remedy.WATCH)
    return Finding("load", Verdict.PASS, node, said)


def _ticks(stat: str) -> tuple[int, int] | None:
    columns = stat.partition("\n")[0].split()[1:]
    if len(columns) <= _STEAL or not all(column.isdecimal() for column in columns):
        return None
    return sum(int(column) for column in columns[:_GUEST]), int(columns[_STEAL])
