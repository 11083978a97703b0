"""Publishes all heartbeat tables of an attempt in one file (`heartbeat.aggregate`), for the operator and the screens.

Every `EVERY` seconds while all is well, at once when something differs, and every `SOON` seconds for a while after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from transom_cli.core.stall_state import StallFinding
from transom_cli.heartbeat.aggregate import encode_all
from transom_cli.heartbeat.local_table import publish
from transom_cli.layout import AttemptDir
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor

EVERY = 5.0  # seconds; readers rely on it (`heartbeat_monitor.FOLLOWED`)
SOON = 1.0
AWHILE = 20.0  # seconds for which what differs is followed closely


class HeartbeatPublisher:
    def __init__(self, attempt: AttemptDir, watch: HeartbeatMonitor) -> None:
        self._path, self._watch = attempt.heartbeats, watch
        self.number = 0  # of the last publication
        self._published = self._differed = float("-inf")
        self._late: tuple[str, ...] = ()

    def look(self, now: float, findings: Sequence[StallFinding]) -> bool:
        """Publish if it is time to. False: that failed, and readers need the nodes' own files."""
        late = self._watch.overdue(now)
        trouble = bool(findings) or late != self._late or self._watch.trouble
        news = trouble or self._watch.news
        self._late = late
        if trouble:
            self._differed = now
        every = SOON if now - self._differed < AWHILE else EVERY
        if not self._watch.tables or not (news or now - self._published >= every):
            return True
        try:
            publish(self._path, encode_all(self.number + 1, self._watch.parts(now)))
        except OSError:
            return False
        self.number += 1
        self._watch.forget_news()
        self._published = now
        return True
