"""Fetches the nodes' heartbeat tables from their agents, over an authenticated connection to each, and publishes them.

Agents write their tables to the run directory while nobody fetches them. So the launcher fetches only while it reads
what comes and the operator can see it (`consumed`): if its loop hangs on a file system, the files come back.
"""

import base64
import binascii
import threading
import time
from collections.abc import Iterable, Sequence

from transom_cli.core.stall_state import StallFinding
from transom_cli.heartbeat.aggregate import encode_all
from transom_cli.heartbeat.local_table import publish
from transom_cli.layout import AttemptDir
from transom_cli.rpc.poll import Poller, Where
from transom_cli.rpc.verbs import Call, Fields
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor

CURRENT = 1.75  # seconds for which a fetched table makes the node's file unnecessary; agents make one a second
UNREAD = 2.5  # seconds without `consumed` after which nothing is fetched
STEPS = 5.0  # seconds between two fetches of a node's step breakdowns
MANY = 100  # nodes from which that interval grows in proportion: their judge reads them so seldom

EVERY = 5.0  # seconds between two publications; readers rely on it (`heartbeat_monitor.FOLLOWED`)
SOON = 1.0
AWHILE = 20.0  # seconds for which what differs is followed closely


class HeartbeatStream:
    """Thread-safe. ``nodes``: whose agents are called; no more than ``most`` of them."""

    def __init__(
        self, nodes: Iterable[str], attempt: str, secret: bytes, where: Where, *, most: int | None = None
    ) -> None:
        self.nodes = tuple(nodes)
        self._lock = threading.Lock()
        self._tables: dict[str, bytes] = {}  # not yet taken
        self._arrived: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._steps: dict[str, str] = {}
        self._steps_due: dict[str, float] = {}
        self._steps_every = STEPS * max(1.0, len(self.nodes) / MANY)
        self._consumed, self._over = time.monotonic(), False
        self._told: set[str] = set()  # nodes that know it
        called = self.nodes[:most]
        self._poller = Poller(secret, called, lambda node: f"{attempt}/{node}", where, self._request, self._answer)
        self._poller.start()

    def take(self) -> tuple[dict[str, bytes], frozenset[str]]:
        """Return the tables that have arrived since the last call, and the nodes whose tables come."""
        with self._lock:
            tables, self._tables = self._tables, {}
        now = time.monotonic()
        return tables, frozenset(node for node, at in self._arrived.copy().items() if now - at < CURRENT)

    def consumed(self) -> None:
        """Note that what was taken is published, or need not be yet."""
        self._consumed = time.monotonic()

    def steps(self, node: str) -> str:
        """Return the node's step breakdowns as text; "" if they do not come."""
        at = self._arrived.get(node)
        return self._steps.get(node, "") if at is not None and time.monotonic() - at < self._steps_every else ""

    def announce_end(self) -> None:
        """Tell the agents that the attempt has its outcome: they end."""
        self._over = True

    def stop(self, patience: float) -> None:
        """Close the connections, once the agents know that the attempt is over, or after `patience` seconds."""
        self.announce_end()
        until = time.monotonic() + patience
        while time.monotonic() < until and any(
            time.monotonic() - at < CURRENT and node not in self._told for node, at in self._arrived.copy().items()
        ):
            time.sleep(0.05)
        self._poller.stop()

    def _request(self, node: str) -> Call | None:
        now = time.monotonic()
        if node in self._told or (now - self._consumed > UNREAD and not self._over):
            return None
        if self._over:
            self._told.add(node)
        steps = now >= self._steps_due.get(node, 0.0)
        if steps:
            self._steps_due[node] = now + self._steps_every
        return Call("beats", {"seen": self._seen.get(node, -1), "steps": steps, "over": self._over})

    def _answer(self, node: str, answer: Fields) -> None:
        table, seq, steps = answer.get("table"), answer.get("seq"), answer.get("steps")
        if not isinstance(table, str) or not isinstance(seq, int) or not table:
            return
        try:
            data = base64.b64decode(table, validate=True)
        except (ValueError, binascii.Error):
            return
        if isinstance(steps, str) and steps:
            self._steps[node] = steps
        if seq == self._seen.get(node):
            return  # the agent answers, and makes no tables
        with self._lock:
            self._seen[node], self._tables[node] = seq, data
            self._arrived[node] = time.monotonic()


class HeartbeatPublisher:
    """Publishes all heartbeat tables of an attempt in one file, for the operator and the screens.

    Every `EVERY` seconds while all is well, at once when something differs, and every `SOON` seconds for a while after.
    """

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
