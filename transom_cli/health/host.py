"""Is the host well on which the ranks run? `HostReader` reads it, `judge_host` is pure.

Standard library only, since the node's agent runs it. What is read is the whole host's: on a shared node a neighbour's
trouble shows too, so that most of it is worth watching (MONITOR) and no more.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.kernel import KernelLog, judge_kernel
from transom_cli.health.node.machine import MachineLimits, judge_uptime
from transom_cli.health.node.memory import Memory, judge_memory, read_memory
from transom_cli.health.node.sysfiles import read_text
from transom_cli.health.room import Room, RoomLimits, RoomReader, judge_room

EVENTS = frozenset(("oom_kill", "clock", "kernel", "gpu_xid"))
"""Checks whose finding is something that happened since the former reading, not a state."""

PATIENCE = 0.5  # seconds that a reading waits for a file system

# systemd-oomd acts at 60 % of "full" memory pressure (DefaultMemoryPressureLimit)
PRESSURE = 60.0
# no source: beats and files of different nodes are compared by the second; a clock that is slewed moves 5 ms in 10 s
JUMP = 1.0
_LIMITS, _ROOM = MachineLimits(), RoomLimits()


@dataclass(frozen=True)
class HostReading:
    """One look. None: cannot be read here.

    wall, mono, booted: seconds, taken together: by the wall clock, by the monotonic one, since the boot. oom_kills:
    since the boot, all control groups together. pressure: percent of the last 10 s in which no task got on (PSI,
    "full"): memory, io. kernel: the kernel's lines since the former look.
    """

    node: str
    wall: float
    mono: float
    booted: float
    load: float
    cpus: int
    memory: Memory | None
    oom_kills: int | None
    pressure: tuple[float, float] | None
    rooms: tuple[Room, ...]
    kernel: tuple[str, ...]
    kernel_trouble: str = ""


class HostReader:
    """Keeps what a look needs of the one before: the place in the kernel's log, file systems that owe an answer."""

    def __init__(self, node: str, paths: tuple[str, ...]) -> None:
        self._node = node
        self._rooms = [RoomReader(path) for path in paths]
        self._kernel = KernelLog()

    def read_host(self) -> HostReading:
        """Never raises, never longer than `PATIENCE` for each path; a dead file system costs one thread."""
        return HostReading(
            node=self._node,
            wall=time.time(),
            mono=time.monotonic(),
            booted=time.clock_gettime(time.CLOCK_BOOTTIME),
            load=os.getloadavg()[0],
            cpus=os.cpu_count() or 1,
            memory=read_memory(),
            oom_kills=_oom_kills(read_text("/proc/vmstat")),
            pressure=_pressure(),
            rooms=tuple(room.read(PATIENCE) for room in self._rooms),
            kernel=self._kernel.lines(),
            kernel_trouble=self._kernel.trouble,
        )


def judge_host(reading: HostReading, former: HostReading | None) -> tuple[Finding, ...]:
    """One finding for each state that can be judged, and one for each thing that happened since `former`."""
    node = reading.node
    found = [judge_memory(node, reading.memory, _LIMITS), _judge_pressure(reading)]
    found.append(judge_uptime(node, reading.booted, _LIMITS.uptime))
    found += [judge_room(node, room, _ROOM) for room in reading.rooms]
    if reading.kernel_trouble:
        found.append(Finding("kernel_log", Verdict.UNKNOWN, reading.node, reading.kernel_trouble))
    found += judge_kernel(reading.node, reading.kernel)
    if former is not None:
        found += _judge_changes(reading, former)
    return tuple(found)


def words(reading: HostReading) -> str:
    """The reading itself, on one line, for whoever asks how the node is."""
    parts = [f"load {reading.load:.1f} on {reading.cpus} CPUs", f"up {reading.booted / 3600:.1f} h"]
    if reading.memory is not None:
        left, total = reading.memory.available / 2**30, reading.memory.total / 2**30
        parts.append(f"{left:.1f} of {total:.1f} GiB of memory available")
    parts += [f"{room.path} {room.used:.0%} full" for room in reading.rooms if room.used is not None]
    return ", ".join(parts)


def _judge_pressure(reading: HostReading) -> Finding:
    if reading.pressure is None:
        return Finding("pressure", Verdict.UNKNOWN, reading.node, "the kernel gives no /proc/pressure")
    memory, io = reading.pressure
    said = f"all tasks waited for memory {memory:.0f} % and for storage {io:.0f} % of the last 10 s"
    return Finding("pressure", Verdict.MONITOR if memory >= PRESSURE else Verdict.PASS, reading.node, said)


def _judge_changes(reading: HostReading, former: HostReading) -> list[Finding]:
    found = []
    span = reading.mono - former.mono
    if reading.oom_kills is not None and former.oom_kills is not None and reading.oom_kills > former.oom_kills:
        more = reading.oom_kills - former.oom_kills
        said = f"the kernel has killed {more} processes for lack of memory within {span:.0f} s"
        found.append(Finding("oom_kill", Verdict.MONITOR, reading.node, said))
    jump = (reading.wall - former.wall) - span
    if abs(jump) >= JUMP:
        said = f"the wall clock has jumped by {jump:+.1f} s within {span:.0f} s"
        found.append(Finding("clock", Verdict.MONITOR, reading.node, said))
    return found


def _oom_kills(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _pressure() -> tuple[float, float] | None:
    texts = (read_text("/proc/pressure/memory"), read_text("/proc/pressure/io"))
    memory, io = (re.search(r"^full avg10=([\d.]+)", text, re.MULTILINE) for text in texts)
    return (float(memory[1]), float(io[1])) if memory and io else None
