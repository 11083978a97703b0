"""Keep every process that bench/ckpt.py starts, directly or indirectly, as a descendant of the bench.

The bench is the subreaper of its descendants, so it adopts the processes that a killed trainer leaves behind. It knows
them, counts their memory, and ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

import psutil
from harness import BenchError

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TRACKERS = 5.0  # s that resource trackers may take to end by themselves
_ROUNDS = 6  # of killing: what is killed may just have started another


def adopt() -> None:
    """From now on orphans among our descendants become our children."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise BenchError(
            "This process cannot be made the subreaper of its descendants", os.strerror(ctypes.get_errno())
        )


def end_all() -> None:
    """Kill what this bench has started and what that has started, and wait for it.

    Python's resource trackers come last, and by themselves: they remove the semaphores of those whom they served. Not
    for a process that has other children, which would go too. Raises BenchError when some do not end.
    """
    for _ in range(_ROUNDS):
        below = psutil.Process().children(recursive=True)
        if not below:
            return
        others = [process for process in below if not _is_tracker(process)]
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(below, timeout=_TRACKERS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_TRACKERS)
    raise BenchError(f"Processes of a turn do not end: {[process.pid for process in below]}")


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def memory_below() -> int:
    """Bytes of anonymous and shared memory of all our descendants, shared pages counted once (PSS)."""
    return sum(_pss(process.pid) for process in psutil.Process().children(recursive=True))


def _pss(pid: int) -> int:
    found = {}
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open(encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.startswith("Pss"):
                    found[name] = int(value.split()[0]) * 1024
    except OSError:  # it has just ended
        return 0
    return found["Pss_Anon"] + found["Pss_Shmem"] if "Pss_Shmem" in found else found.get("Pss", 0)
