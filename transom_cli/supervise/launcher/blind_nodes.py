"""Says which training nodes send no heartbeats, so that nobody takes an unwatched training for a healthy one."""

from __future__ import annotations

from collections.abc import Iterable

from transom_cli.core.launcher import Phase, State
from transom_cli.heartbeat.table import NodeTable
from transom_cli.plural import some
from transom_cli.supervise.launcher.journal import JournalWriter, say

AFTER = 60.0  # seconds from a launch's start: agents and ranks of a large job take a while to come up


class BlindNodes:
    """wrapped: each rank's wrapper makes a record, so a table without ranks shows nothing either."""

    def __init__(self, wrapped: bool, journal: JournalWriter) -> None:
        self._wrapped, self._journal = wrapped, journal
        self._since: tuple[int, float] = (-1, 0.0)  # launch, when it was first seen
        self._reported: tuple[str, ...] = ()

    def look(self, state: State, tables: Iterable[NodeTable], now: float) -> None:
        """Journal and print the nodes of a launch that send nothing, each time that they change."""
        launch = state.launch.number if state.phase is Phase.TRAINING and state.launch.started else -1
        if launch < 0 or launch != self._since[0]:
            self._since = (launch, now)
            return
        if now - self._since[1] < AFTER:
            return
        seen = {t.node for t in tables if not self._wrapped or any(r.launch == launch for r in t.ranks)}
        blind = tuple(node for node in state.nodes.training if node not in seen)
        if blind == self._reported:
            return
        self._reported = blind
        words = (
            f"no heartbeats from {some(blind)}: a hang there is not detected" if blind else "heartbeats from all nodes"
        )
        self._journal("blind", nodes=blind, words=words)
        say(f"transom: {words}" + ("; the agents' log and the ranks' logs say why" if blind else ""))
