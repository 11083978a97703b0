"""What the agent sees beside the beats: the host's health and the rank logs, each in a thread of its own.

The beat table must not wait for them. Health is read without the run directory, so that it can be told over the
connection also while that directory's file system hangs; the other thread reads the logs and writes the findings.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from transom_cli.diagnose.clue import Action
from transom_cli.diagnose.logs import matches
from transom_cli.diagnose.logs.matches import Hit
from transom_cli.health import finding as edges
from transom_cli.health import host_watch
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.host_watch import HostReader, HostReading
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.alarms import Alarms
from transom_cli.supervise.agent.findings import HOST, LOG, Findings
from transom_cli.supervise.agent.logs import NodeLogs

HEALTH = 10.0  # seconds between two readings of the host
LOGS = 1.0  # seconds between two looks at the logs
LEAVE = 2.0  # seconds for the last look
SURE = 0.8  # a rule's own confidence
NEWS = 1000  # findings about the host that wait to be written, while the run directory does not answer


class News:
    """What is to be told, oldest first: from one thread to the other. The oldest make place for newer ones."""

    def __init__(self) -> None:
        self._found: deque[Finding] = deque()
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, news: Iterable[Finding]) -> None:
        with self._lock:
            self._found.extend(news)
            self._trim()

    def put_back(self, finding: Finding) -> None:
        with self._lock:
            self._found.appendleft(finding)
            self._trim()

    def take(self) -> tuple[Finding | None, int]:
        """The oldest, if any, and how many before it were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return self._found.popleft() if self._found else None, dropped

    def _trim(self) -> None:
        while len(self._found) > NEWS:
            self._found.popleft()
            self._dropped += 1


class Eyes:
    """`rows` gives the ranks of the last look at the beats. Signals that others are to get must be blocked before."""

    def __init__(
        self,
        attempt: AttemptDir,
        node: str,
        beats_dir: str,
        rows: Callable[[], Sequence[RankBeat]],
        alarms: Alarms | None = None,
    ) -> None:
        self._node, self._rows = node, rows
        self.alarms = alarms or Alarms()
        self._reader = HostReader(node, tuple(dict.fromkeys(("/tmp", "/dev/shm", str(attempt.path)))))
        self._logs = NodeLogs(attempt, beats_dir)
        self._findings = Findings(attempt.findings(node))
        self._reading: HostReading | None = None
        self._judged: tuple[Finding, ...] = ()
        self._news = News()
        self._read: deque[tuple[int, Hit]] = deque(maxlen=NEWS)  # in logs that somebody asked for
        self._leave = threading.Event()
        self._threads = [threading.Thread(target=x, daemon=True, name=x.__name__) for x in (self._feel, self._follow)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """After a last look at the logs, if that does not take long."""
        self._leave.set()
        until = time.monotonic() + LEAVE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def health(self) -> dict[str, object]:
        """The latest reading: its worst verdict, what is not well, the numbers, and how old it is in seconds."""
        reading, judged = self._reading, self._judged
        if reading is None:
            return {"verdict": Verdict.UNKNOWN.value, "words": "no reading yet", "findings": [], "age": None}
        bad = [f"{f.verdict.value}: {f.evidence}" for f in judged if f.verdict is not Verdict.PASS]
        return {
            "verdict": edges.worst(judged).value,
            "words": host_watch.summary(reading),
            "findings": bad[:20],
            "age": round(time.monotonic() - reading.mono, 1),
        }

    def tell(self, news: Sequence[Finding]) -> None:
        """Into the node's findings, and what speaks against the node to the launcher at once. From any thread."""
        self._news.add(news)
        self.alarms.add(news)

    @property
    def told(self) -> Mapping[str, edges.Reported]:
        """What an agent before this one has told, for whoever watches beside the host."""
        return self._findings.told

    def cause(self, launch: int) -> dict[str, object]:
        """What the logs of the launch's ranks on this node tell (see `logs.read_cause`)."""
        answer, hits = self._logs.cause(launch, self._rows())
        self._read.extend((launch, hit) for hit in hits if matches.worth_reporting(hit))
        return answer

    def _feel(self) -> None:
        told: Mapping[str, edges.Reported] = self._findings.told
        while True:
            reading = self._reader.read_host()
            judged = host_watch.judge_host(reading, self._reading)
            self._reading, self._judged = reading, judged
            told, news = edges.changes(told, judged, host_watch.EVENTS)
            self.tell(news)
            if self._leave.wait(HEALTH):
                return

    def _follow(self) -> None:
        leaving = False
        while True:
            with contextlib.suppress(OSError):  # the run directory does not answer: what comes later is told later
                self._write()
            if leaving:
                return
            leaving = self._leave.wait(LOGS)

    def _write(self) -> None:
        rows = self._rows()
        launch = max((row.launch for row in rows), default=-1)
        while True:
            found, dropped = self._news.take()
            self._findings.skip(dropped)
            if found is None:
                break
            always = found.check not in host_watch.EVENTS
            try:
                self._findings.tell(HOST + edges.key(found), found.verdict, found.evidence, None, launch, always=always)
            except OSError:
                self._news.put_back(found)
                raise
        # a launch that failed at once may be followed by the next before its logs were looked at
        read = [self._read.popleft() for _ in range(len(self._read))]
        for of, hit in (*self._logs.look(rows), *read):
            category = hit.rule.category.value if hit.rule.category else ""
            self._findings.tell(LOG + category, _verdict(hit), hit.record.text, hit.record.rank, of)


def _verdict(hit: Hit) -> Verdict:
    """What one line says of its node, surely enough for a rule to keep a job off it, is a suspicion."""
    return Verdict.SUSPECT if hit.rule.action is Action.ISOLATE and hit.rule.confidence >= SURE else Verdict.MONITOR
