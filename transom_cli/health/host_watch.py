"""The node's host during training: `HostReader` reads it every few seconds, `judge_host` is pure.

Standard library only: the node's agent runs it. Readings cover the whole host, including other jobs on a shared node,
so most findings are MONITOR.
"""

import os
import re
import time
from dataclasses import dataclass

from transom_cli.health.checks.host import MachineLimits, Memory, judge_memory, judge_uptime, read_memory
from transom_cli.health.checks.kernel import KernelLog, LoggedGpu, judge_lines, read_logged_gpus, read_site_rules
from transom_cli.health.checks.mounts import Room, RoomLimits, RoomReader, judge_room
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.gpu.xid import NO_SITE_RULES, SiteRules
from transom_cli.health.system import read_text

EVENTS = frozenset(("oom_kill", "clock", "kernel", "gpu_xid"))
"""Checks whose finding is something that happened since the last reading, not a state."""

ROOM_TIMEOUT = 0.5  # seconds that a reading waits for a file system
PRESSURE = 60.0  # percent; systemd-oomd acts at 60% of "full" memory pressure (DefaultMemoryPressureLimit)
JUMP = 1.0  # seconds; no source: nodes' heartbeats are compared by the second; slewing moves a clock 5 ms in 10 s
_LIMITS, _ROOM = MachineLimits(), RoomLimits()


@dataclass(frozen=True)
class HostReading:
    """One reading. None: unreadable here.

    wall, mono, booted: seconds, read together: wall clock, monotonic clock, time since the boot. oom_kills: since the
    boot, in all cgroups. pressure: percent of the last 10 s in which all tasks waited (PSI, "full"), for memory and
    I/O. kernel: new lines of the kernel log; gpus, site: what is needed to judge them.
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
    gpus: tuple[LoggedGpu, ...] = ()
    site: SiteRules = NO_SITE_RULES


class HostReader:
    """Reads the host. Keeps its position in the kernel log, and calls to file systems that have not answered."""

    def __init__(self, node: str, paths: tuple[str, ...]) -> None:
        self._node = node
        self._rooms = [RoomReader(path) for path in paths]
        self._kernel = KernelLog()

    def read_host(self) -> HostReading:
        """Read everything. Never raises; waits at most `ROOM_TIMEOUT` per path."""
        lines = self._kernel.lines()
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
            rooms=tuple(room.read(ROOM_TIMEOUT) for room in self._rooms),
            kernel=lines,
            kernel_trouble=self._kernel.trouble,
            gpus=read_logged_gpus() if lines else (),
            site=read_site_rules() if lines else NO_SITE_RULES,
        )


def judge_host(reading: HostReading, former: HostReading | None) -> tuple[Finding, ...]:
    """Return one finding per state, and one for each thing that happened since `former`."""
    node = reading.node
    found = [judge_memory(node, reading.memory, _LIMITS), _judge_pressure(reading)]
    found.append(judge_uptime(node, reading.booted, _LIMITS.uptime))
    found += [judge_room(node, room, _ROOM) for room in reading.rooms]
    if reading.kernel_trouble:
        found.append(Finding("kernel_log", Verdict.UNKNOWN, reading.node, reading.kernel_trouble))
    if reading.kernel:
        found += judge_lines(node, reading.kernel, reading.gpus, reading.site)
    if former is not None:
        found += _judge_changes(reading, former)
    return tuple(found)


def summary(reading: HostReading) -> str:
    """Return the reading as one line."""
    parts = [f"load {reading.load:.1f} on {reading.cpus} CPUs", f"up {reading.booted / 3600:.1f} h"]
    if reading.memory is not None:
        available, total = reading.memory.available / 2**30, reading.memory.total / 2**30
        parts.append(f"{available:.1f} of {total:.1f} GiB of memory available")
    parts += [f"{room.path} {room.used:.0%} full" for room in reading.rooms if room.used is not None]
    return ", ".join(parts)


def _judge_pressure(reading: HostReading) -> Finding:
    if reading.pressure is None:
        return Finding("pressure", Verdict.UNKNOWN, reading.node, "the kernel provides no /proc/pressure")
    memory, io = reading.pressure
    text = f"in the last 10 s, all tasks waited for memory {memory:.0f}% and for I/O {io:.0f}% of the time"
    return Finding("pressure", Verdict.MONITOR if memory >= PRESSURE else Verdict.PASS, reading.node, text)


def _judge_changes(reading: HostReading, former: HostReading) -> list[Finding]:
    found = []
    seconds = reading.mono - former.mono
    if reading.oom_kills is not None and former.oom_kills is not None and reading.oom_kills > former.oom_kills:
        kills = reading.oom_kills - former.oom_kills
        text = f"the kernel killed {kills} processes for lack of memory in {seconds:.0f} s"
        found.append(Finding("oom_kill", Verdict.MONITOR, reading.node, text))
    jump = (reading.wall - former.wall) - seconds
    if abs(jump) >= JUMP:
        text = f"the wall clock jumped by {jump:+.1f} s in {seconds:.0f} s"
        found.append(Finding("clock", Verdict.MONITOR, reading.node, text))
    return found


def _oom_kills(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _pressure() -> tuple[float, float] | None:
    texts = (read_text("/proc/pressure/memory"), read_text("/proc/pressure/io"))
    memory, io = (re.search(r"^full avg10=([\d.]+)", text, re.MULTILINE) for text in texts)
    return (float(memory[1]), float(io[1])) if memory and io else None
