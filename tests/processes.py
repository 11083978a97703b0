"""What tests of real processes share: waiting for a claim to come true, and starting as slurmd does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(claim: Callable[[], object], seconds: float = 20.0) -> None:
    for _ in range(int(seconds * 100)):
        if claim():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def stop(pid: int) -> None:
    """SIGSTOP, and it has worked: a thread that runs on another core goes on for a moment after the signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(_stopped(stat.read_text()) for stat in Path(f"/proc/{pid}/task").glob("*/stat")))


def _stopped(stat: str) -> bool:
    return stat.rpartition(")")[2].split()[0] == "T"


def as_slurmd_starts() -> None:
    """Every signal at its default: slurmstepd resets them, while nohup, `&` or a CI runner ignore some."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_DFL)
