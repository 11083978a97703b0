"""Asks an agent what it has found against its node, as soon as the beat table says that there is something."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import NodeFault
from transom_cli.core.launcher import Event, FaultsFound
from transom_cli.errors import printable
from transom_cli.heartbeat.table import NodeTable

AT_ONCE = 32  # agents that are asked: a shared file system that hangs lets all nodes tell of it together
AGAIN = 5.0  # seconds before an agent that did not answer is asked again
Ask = Callable[[str], Mapping[str, object]]  # the agent's answer with "faults", or an "error"


class FaultWatch:
    def __init__(self, inbox: queue.SimpleQueue[Event], ask: Ask) -> None:
        self._inbox, self._ask = inbox, ask
        self._seen: dict[str, int] = {}  # alarms of each node that were asked about
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()

    def look(self, tables: Mapping[str, NodeTable], now: float) -> None:
        """Returns at once; what is found comes into the inbox."""
        for node, table in tables.items():
            if len(self._busy) >= AT_ONCE:
                return
            told = table.alarms != self._seen.get(node, 0)
            if told and node not in self._busy and now >= self._due.get(node, 0.0):
                self._busy.add(node)
                self._due[node] = now + AGAIN
                threading.Thread(target=self._learn, args=(node, table.alarms), name="faults", daemon=True).start()

    def _learn(self, node: str, alarms: int) -> None:
        try:
            said = self._ask(node).get("faults")
            if isinstance(said, list):
                self._seen[node] = alarms
                self._due.pop(node, None)
                found = tuple(f for f in (_fault(node, one) for one in said) if f is not None)
                if found:
                    self._inbox.put(FaultsFound(0.0, found))
        finally:
            self._busy.discard(node)


def _fault(node: str, said: object) -> NodeFault | None:
    """An agent speaks for its own node alone; what it quotes is for a terminal."""
    try:
        found = build(NodeFault, {**said, "node": node} if isinstance(said, dict) else {})
    except BadRecord:
        return None
    plain = {name: printable(text)[:500] for name, text in vars(found).items()}
    return NodeFault(**plain) if found.verdict in ("FAIL", "SUSPECT") else None
