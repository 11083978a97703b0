"""How whoever examines nodes talks with them: the protocol. `crew_srun` and `crew_local` keep it.

A message is a JSON object. To the nodes it has "do", from them "re" (to what it answers) and "node":

    {"do": "look", "about": {...}, "checks": [...]}   {"re": "look", "node": n, "check": c, "reading": {...}}
    {"do": "ping", "n": 1}                            {"re": "ping", "node": n, "n": 1, "wall": ...}
    {"do": "probe", "ask": {...}}                     {"re": "probe", "node": n, "index": i, "answer": {...}}
    {"do": "bye"}

"probe" is passed on to each of the node's probe processes, one a device (`probe.rank`), numbered from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Message = dict[str, Any]


class Crew(Protocol):
    """One examiner a node. Nothing here blocks longer than it is told to, whatever the nodes do."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        """To all nodes, or to some. One that is gone does not hear it, and nobody is told."""

    def receive(self, timeout: float) -> Message | None:
        """The next message of any node; None when none came within `timeout` seconds, or when all are gone."""

    def gone(self) -> tuple[str, ...]:
        """Nodes of which it is known that their examiner has ended: nothing more will come. Others may have, too."""

    def close(self) -> None:
        """End them, at once."""
