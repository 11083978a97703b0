"""What tests of real processes share: waiting for a claim to come true, and starting as slurmd does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable


def wait_for(claim: Callable[[], object], seconds: float = 20.0) -> None:
    for _ in range(int(seconds * 100)):
        if claim():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def as_slurmd_starts() -> None:
    """Every signal at its default: slurmstepd resets them, while nohup, `&` or a CI runner ignore some."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_DFL)
