"""What the agent has found that speaks against its own node. The beat table tells how much, the launcher asks what."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from transom_cli.health.finding import Finding, Remedy, Verdict

KEPT = 50
LASTS = 600.0  # seconds for which a suspicion counts: what a link did in the morning explains no failure at night
_THE_NODES_OWN = (Remedy.AVOID, Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPAIR)
_ANYBODYS = ("memory", "room", "mount", "write", "mounts", "shm")


class Alarms:
    """A suspicion counts where the node is to be helped, and not what may as well be the job's own doing (a full /tmp,
    no memory left) or the file server's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._faults: deque[tuple[float, dict[str, str]]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, news: Iterable[Finding]) -> None:
        for found in news:
            own = found.remedy in _THE_NODES_OWN and found.check.partition(":")[0] not in _ANYBODYS
            if found.verdict is Verdict.FAIL or (found.verdict is Verdict.SUSPECT and own):
                with self._lock:
                    self._faults.append((self._clock(), _fault(found)))
                    self.count += 1

    def faults(self) -> list[dict[str, str]]:
        """As `core.events.NodeFault` has them, oldest first; suspicions of late alone."""
        now = self._clock()
        with self._lock:
            return [f for at, f in self._faults if f["verdict"] == Verdict.FAIL.name or now - at < LASTS]


def _fault(found: Finding) -> dict[str, str]:
    return {
        "node": found.node,
        "check": found.check,
        "verdict": found.verdict.name,
        "evidence": found.evidence,
        "remedy": found.remedy.value,
        "device": found.device,
        "serial": found.serial,
    }
