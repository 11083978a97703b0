"""The node's clock: is it synchronised (`judge_clock`), and does it agree with the other nodes (`judge_clocks`).

Heartbeats, logs and checkpoints of different nodes are compared by time, so one second of difference misleads. A clock
that is minutes off makes the node useless: MUNGE rejects credentials older than 300 s, so no step starts there.
"""

import ctypes
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.system import read_text, sysfs

OFFSET = "clock_offset"
_SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")  # one read costs a microsecond, or a tick
_UNSYNCHRONIZED = 0x0040  # STA_UNSYNC, adjtimex(2)
_FAILED = -1
_STRUCT = 256  # bytes; struct timex has 208 on 64-bit Linux
_MAX_ERROR, _STATUS = 24, 40  # offsets in it: `long maxerror` in microseconds, `int status`


@dataclass(frozen=True)
class Clock:
    """source: the kernel's clock source. synchronized: by NTP, PTP or similar; None if unknown. error: the maximum
    error in seconds that the synchronisation daemon reports."""

    source: str = ""
    synchronized: bool | None = None
    error: float | None = None


@dataclass(frozen=True)
class ClockLimits:
    """Seconds from the median of the nodes' wall clocks.

    clock_off: heartbeats and files of different nodes are compared by the second. clock_broken: MUNGE's default
    credential lifetime.
    """

    clock_off: float = 1.0
    clock_broken: float = 300.0


def read_clock() -> Clock:
    source = read_text(sysfs("devices/system/clocksource/clocksource0/current_clocksource"))
    found = ctypes.create_string_buffer(_STRUCT)  # modes 0: adjtimex sets nothing
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
    text = f"the kernel's clock source is {clock.source or 'unknown'}"
    if clock.source in _SLOW:
        source = Finding("clocksource", Verdict.MONITOR, node, f"{text}, which is slow", Remedy.SETUP)
    else:
        source = Finding("clocksource", Verdict.PASS if clock.source else Verdict.UNKNOWN, node, text)
    return source, _judge_sync(node, clock)


def _judge_sync(node: str, clock: Clock) -> Finding:
    if clock.synchronized is None or clock.error is None:
        return Finding("clock_sync", Verdict.UNKNOWN, node, "adjtimex does not say if the clock is synchronised")
    if not clock.synchronized:
        text = "the clock is not synchronised (adjtimex: STA_UNSYNC): NTP or PTP is not running or has lost its source"
        return Finding("clock_sync", Verdict.MONITOR, node, text, Remedy.SETUP)
    return Finding("clock_sync", Verdict.PASS, node, f"the clock is synchronised to within {clock.error:.3f} s")


def judge_clocks(offsets: Mapping[str, tuple[float, float]], limits: ClockLimits) -> tuple[Finding, ...]:
    """Return one finding per node.

    The reference is the median, not the asking host: one wrong clock must not accuse all others. With two nodes nobody
    can say which clock is right: both are reported and neither is suspected.

    Args:
        offsets: per node, its wall clock minus the asking host's, and the error of that measurement, in seconds.
    """
    if not offsets:
        return ()
    median = statistics.median(offset for offset, _ in offsets.values())
    return tuple(_judge_offset(node, at - median, error, len(offsets), limits) for node, (at, error) in offsets.items())


def _judge_offset(node: str, off: float, error: float, nodes: int, limits: ClockLimits) -> Finding:
    text = f"its wall clock is {off:+.3f} s from the median of {nodes} nodes (measured to {error:.3f} s)"
    certain = abs(off) - error
    if certain >= limits.clock_broken and nodes > 2:
        return Finding(OFFSET, Verdict.SUSPECT, node, text, Remedy.AVOID)
    if certain >= limits.clock_off / (2 if nodes == 2 else 1):  # the median of two lies halfway between them
        return Finding(OFFSET, Verdict.MONITOR, node, text, Remedy.SETUP)
    return Finding(OFFSET, Verdict.PASS, node, text)
