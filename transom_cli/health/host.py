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
from transom_cli.health.room import Room, RoomReader

EVENTS = frozenset(("oom_kill", "clock", "kernel"))
"""Checks whose finding is something that happened since the former reading, not a state."""

PATIENCE = 0.5  # seconds that a reading waits for a file system

# gcm (`check-storage disk-usage`): critical at 85 % of the space, or of the inodes
USED = 0.85
# no source: what is left is too little for a checkpoint's staging, a beat or a log line
FULL = 0.99
# NVRx gives a path 15 s to answer
NO_ANSWER = 15.0
# systemd-oomd acts at 60 % of "full" memory pressure (DefaultMemoryPressureLimit)
PRESSURE = 60.0
# gcm asks whether a node has been up for 600 s: one that has just come back may go again
UPTIME = 600.0
# no source: ranks are killed for memory within seconds from here
MEMORY_LOW, MEMORY_OUT = 0.05, 0.01
# no source: beats and files of different nodes are compared by the second; a clock that is slewed moves 5 ms in 10 s
JUMP = 1.0


@dataclass(frozen=True)
class HostReading:
    """One look. None: cannot be read here.

    wall, mono, booted: seconds, taken together: by the wall clock, by the monotonic one, since the boot. memory:
    bytes, available and total. oom_kills: since the boot, all control groups together. pressure: percent of the last
    10 s in which no task got on (PSI, "full"): memory, io. kernel: the kernel's lines since the former look.
    """

    node: str
    wall: float
    mono: float
    booted: float
    load: float
    cpus: int
    memory: tuple[int, int] | None
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
            memory=memory(),
            oom_kills=_oom_kills(_text("/proc/vmstat")),
            pressure=_pressure(),
            rooms=tuple(room.read(PATIENCE) for room in self._rooms),
            kernel=self._kernel.lines(),
            kernel_trouble=self._kernel.trouble,
        )


def judge_host(reading: HostReading, former: HostReading | None) -> tuple[Finding, ...]:
    """One finding for each state that can be judged, and one for each thing that happened since `former`."""
    found = [_judge_memory(reading), _judge_pressure(reading), _judge_uptime(reading)]
    found += [_judge_room(reading.node, room) for room in reading.rooms]
    if reading.kernel_trouble:
        found.append(Finding("kernel_log", Verdict.UNKNOWN, reading.node, reading.kernel_trouble))
    found += judge_kernel(reading.node, reading.kernel)
    if former is not None:
        found += _judge_changes(reading, former)
    return tuple(found)


def memory() -> tuple[int, int] | None:
    """Bytes of the host's memory, available and total; None when it does not tell."""
    return _memory(_text("/proc/meminfo"))


def words(reading: HostReading) -> str:
    """The reading itself, on one line, for whoever asks how the node is."""
    parts = [f"load {reading.load:.1f} on {reading.cpus} CPUs", f"up {reading.booted / 3600:.1f} h"]
    if reading.memory is not None:
        parts.append(f"{reading.memory[0] / 2**30:.1f} of {reading.memory[1] / 2**30:.1f} GiB of memory available")
    parts += [f"{room.path} {room.used:.0%} full" for room in reading.rooms if room.used is not None]
    return ", ".join(parts)


def _judge_memory(reading: HostReading) -> Finding:
    if reading.memory is None:
        return Finding("memory", Verdict.UNKNOWN, reading.node, "/proc/meminfo cannot be read")
    available, total = reading.memory
    left = available / total
    verdict = Verdict.SUSPECT if left < MEMORY_OUT else Verdict.MONITOR if left < MEMORY_LOW else Verdict.PASS
    said = f"{available / 2**20:.0f} of {total / 2**20:.0f} MiB of memory are available ({left:.1%})"
    return Finding("memory", verdict, reading.node, said)


def _judge_pressure(reading: HostReading) -> Finding:
    if reading.pressure is None:
        return Finding("pressure", Verdict.UNKNOWN, reading.node, "the kernel gives no /proc/pressure")
    memory, io = reading.pressure
    said = f"all tasks waited for memory {memory:.0f} % and for storage {io:.0f} % of the last 10 s"
    return Finding("pressure", Verdict.MONITOR if memory >= PRESSURE else Verdict.PASS, reading.node, said)


def _judge_uptime(reading: HostReading) -> Finding:
    young = reading.booted < UPTIME
    said = f"it booted {reading.booted:.0f} s ago"
    return Finding("uptime", Verdict.MONITOR if young else Verdict.PASS, reading.node, said)


def _judge_room(node: str, room: Room) -> Finding:
    check = f"room:{room.path}"
    if room.waited:
        verdict = Verdict.MONITOR if room.waited >= NO_ANSWER else Verdict.UNKNOWN
        return Finding(check, verdict, node, f"{room.path} has not answered for {room.waited:.0f} s")
    if room.used is None:
        return Finding(check, Verdict.UNKNOWN, node, f"{room.path}: {room.error or 'it tells no size'}")
    fullest = max(room.used, room.inodes or 0.0)
    verdict = Verdict.SUSPECT if fullest >= FULL else Verdict.MONITOR if fullest >= USED else Verdict.PASS
    inodes = "" if room.inodes is None else f", {room.inodes:.0%} of its inodes"
    said = f"{room.path}: {room.used:.0%} of its space{inodes} used, {room.free / 2**20:.0f} MiB free"
    return Finding(check, verdict, node, said)


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


def _memory(text: str) -> tuple[int, int] | None:
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    total = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    if available is None or total is None or int(total[1]) == 0:
        return None
    return int(available[1]) * 1024, int(total[1]) * 1024


def _oom_kills(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _pressure() -> tuple[float, float] | None:
    full = [re.search(r"^full avg10=([\d.]+)", _text(f"/proc/pressure/{x}"), re.MULTILINE) for x in ("memory", "io")]
    memory, io = full
    return (float(memory[1]), float(io[1])) if memory and io else None


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65536):  # /proc gives a page at a time
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
