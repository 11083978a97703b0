"""The node's clock: is it kept right (`judge_clock`), and does it agree with the other nodes' (`judge_clocks`).

Beats, logs and checkpoints of different nodes are compared by their times, so a second of difference misleads. A clock
that is minutes wrong makes the node useless: MUNGE refuses credentials older than 300 s, so no step starts there.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.node.sysfiles import read_text, sysfs

OFFSET = "clock_offset"
_SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")  # each reading costs a microsecond, or a tick
_UNSYNCHRONIZED = 0x0040  # STA_UNSYNC, adjtimex(2)
_FAILED = -1
_STRUCT = 256  # bytes; struct timex has 208 on 64-bit Linux
_MAX_ERROR, _STATUS = 24, 40  # offsets in it: `long maxerror` in microseconds, `int status`


@dataclass(frozen=True)
class Clock:
    """source: what the kernel counts time with. synchronized: by NTP, PTP or the like; None: it does not tell.

    error: the most that it may be wrong by, in seconds, as whoever keeps it says.
    """

    source: str = ""
    synchronized: bool | None = None
    error: float | None = None


@dataclass(frozen=True)
class ClockLimits:
    """Seconds from the median of the nodes' wall clocks.

    clock_off: as for a clock that jumps: beats and files of different nodes are compared by the second. clock_broken:
    MUNGE's default lifetime of a credential.
    """

    clock_off: float = 1.0
    clock_broken: float = 300.0


def read_clock() -> Clock:
    source = read_text(sysfs("devices/system/clocksource/clocksource0/current_clocksource"))
    found = ctypes.create_string_buffer(_STRUCT)  # modes 0: nothing is set
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(found)
    except (OSError, AttributeError):
        return Clock(source)
    if state == _FAILED or ctypes.sizeof(ctypes.c_long) != 8:
        return Clock(source)
    status = ctypes.c_int.from_buffer(found, _STATUS).value
    error = ctypes.c_long.from_buffer(found, _MAX_ERROR).value
    return Clock(source, not status & _UNSYNCHRONIZED, error / 1e6)


def judge_clock(node: str, clock: Clock) -> tuple[Finding, ...]:
    slow = clock.source in _SLOW
    said = f"the kernel counts time with {clock.source or 'an unknown clock'}"
    source = Finding("clocksource", Verdict.MONITOR, node, f"{said}, a slow one", Remedy.SETUP)
    if not slow:
        source = Finding("clocksource", Verdict.PASS if clock.source else Verdict.UNKNOWN, node, said)
    return source, _judge_sync(node, clock)


def _judge_sync(node: str, clock: Clock) -> Finding:
    if clock.synchronized is None or clock.error is None:
        return Finding("clock_sync", Verdict.UNKNOWN, node, "adjtimex does not tell who keeps the clock")
    if not clock.synchronized:
        said = "nothing keeps the clock right (adjtimex: STA_UNSYNC): no NTP or PTP runs, or it has lost its source"
        return Finding("clock_sync", Verdict.MONITOR, node, said, Remedy.SETUP)
    return Finding("clock_sync", Verdict.PASS, node, f"the clock is kept, at most {clock.error:.3f} s off")


def judge_clocks(offsets: Mapping[str, tuple[float, float]], limits: ClockLimits) -> tuple[Finding, ...]:
    """A finding for each node. offsets: its wall clock against the asker's, and by how much that may be wrong, seconds.

    Against the median, not against the asker: one wrong clock must not name all the others. Of two nodes nobody can say
    which one is right: both are told, and neither is suspected.
    """
    if not offsets:
        return ()
    median = statistics.median(offset for offset, _ in offsets.values())
    return tuple(_judge_offset(node, at - median, error, len(offsets), limits) for node, (at, error) in offsets.items())


def _judge_offset(node: str, off: float, error: float, nodes: int, limits: ClockLimits) -> Finding:
    said = f"its wall clock is {off:+.3f} s off the median of {nodes} nodes' (measured to {error:.3f} s)"
    sure = abs(off) - error
    if sure >= limits.clock_broken and nodes > 2:
        return Finding(OFFSET, Verdict.SUSPECT, node, said, Remedy.AVOID)
    if sure >= limits.clock_off / (2 if nodes == 2 else 1):  # the median of two lies in their middle
        return Finding(OFFSET, Verdict.MONITOR, node, said, Remedy.SETUP)
    return Finding(OFFSET, Verdict.PASS, node, said)
