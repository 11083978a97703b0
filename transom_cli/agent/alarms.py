"""What the agent has found that speaks against its own node. The beat table tells how much, the launcher asks what."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from transom_cli.health.finding import Finding, Remedy, Verdict

KEPT = 50
_THE_NODES_OWN = (Remedy.AVOID, Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPAIR)


class Alarms:
    """A suspicion counts where the node is to be helped, and not what may as well be the job's own doing."""

    def __init__(self) -> None:
        self.count = 0
        self._faults: deque[dict[str, str]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, news: Iterable[Finding]) -> None:
        for found in news:
            suspect = found.verdict is Verdict.SUSPECT and found.remedy in _THE_NODES_OWN
            if found.verdict is Verdict.FAIL or suspect:
                with self._lock:
                    self._faults.append(_fault(found))
                    self.count += 1

    def faults(self) -> list[dict[str, str]]:
        """As `core.events.NodeFault` has them, oldest first."""
        with self._lock:
            return list(self._faults)


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
