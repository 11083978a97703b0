"""What the launcher does after an outcome of failure: it keeps the allocation while a live operator renews its lease.

The operator requeues the job out of it: a job that ends by itself with a dead node in it hangs in COMPLETING until
SlurmdTimeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from transom_cli.layout import RunDir
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 20.0  # seconds without a renewed lease, on our clock
LINGER = 180.0  # at most this long for a live operator to requeue


def linger(run: RunDir, told_to_leave: Callable[[], bool]) -> None:
    """Returns when Slurm wants the job to end, when there is no live operator, or after LINGER seconds."""
    began = seen_at = time.monotonic()
    seen = read_holder(run)
    while time.monotonic() - began < LINGER and not told_to_leave():
        holder = read_holder(run)
        if holder is None or holder.released:
            return
        if seen is None or (holder.epoch, holder.renewals) != (seen.epoch, seen.renewals):
            seen, seen_at = holder, time.monotonic()
        if time.monotonic() - seen_at > OPERATOR_GONE:
            return
        time.sleep(0.1)
