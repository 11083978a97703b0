"""What the agent watches beside the heartbeats: the host's health, rank logs and event files, each in its own thread.

The heartbeat table must not wait for them. Health is read without the run directory, so that it can be reported over
the connection even if that file system hangs. The other thread reads the logs and writes the findings.
"""

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
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.host_watch import HostReader, HostReading
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.findings import HOST, LOG, Findings
from transom_cli.supervise.agent.kernel_kills import KernelKills
from transom_cli.supervise.agent.logs import SECONDS, NodeLogs
from transom_cli.supervise.agent.trainer_progress import TrainerProgress

HEALTH = 10.0  # seconds between two readings of the host
LOGS = 1.0  # seconds between two readings of the logs
LEAVE = 2.0  # seconds for the last reading
SURE = 0.8  # the confidence of a rule that makes one line a suspicion
NEWS = 1000  # findings that wait while the run directory does not answer
KEPT = 50  # faults
LASTS = 600.0  # seconds for which a suspicion counts: an old link error explains no new failure
_NODE_REMEDIES = (Remedy.AVOID, Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPAIR)
_JOB_CHECKS = ("memory", "room", "mount", "write", "mounts", "shm")


class FindingQueue:
    """Findings on their way from one thread to the other, oldest first. If it is full, the oldest are dropped."""

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
        """Return the oldest finding, if any, and how many were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return self._found.popleft() if self._found else None, dropped

    def _trim(self) -> None:
        while len(self._found) > NEWS:
            self._found.popleft()
            self._dropped += 1


class Alarms:
    """The findings against this node. The heartbeat table has their number, and the launcher asks for the list.

    A suspicion counts if its remedy concerns the node. A full /tmp, missing memory and file system trouble do not
    count, because the job or the file server may cause them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._faults: deque[tuple[float, dict[str, str]]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, news: Iterable[Finding]) -> None:
        for found in news:
            own = found.remedy in _NODE_REMEDIES and found.check.partition(":")[0] not in _JOB_CHECKS
            if found.verdict is Verdict.FAIL or (found.verdict is Verdict.SUSPECT and own):
                with self._lock:
                    self._faults.append((self._clock(), _fault(found)))
                    self.count += 1

    def faults(self) -> list[dict[str, str]]:
        """Return the fields of `core.events.NodeFault`, oldest first, without old suspicions."""
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


class Monitor:
    """`rows` returns the ranks as of the last heartbeats. Block the signals for other threads before."""

    def __init__(
        self,
        attempt: AttemptDir,
        node: str,
        beats_dir: str,
        rows: Callable[[], Sequence[RankBeat]],
        alarms: Alarms | None = None,
        progress: TrainerProgress | None = None,
    ) -> None:
        self._node, self._rows = node, rows
        self.alarms = alarms or Alarms()
        self._reader = HostReader(node, tuple(dict.fromkeys(("/tmp", "/dev/shm", str(attempt.path)))))
        self._logs = NodeLogs(attempt, beats_dir, progress, KernelKills(node))
        self._findings = Findings(attempt.findings(node))
        self._reading: HostReading | None = None
        self._judged: tuple[Finding, ...] = ()
        self._news = FindingQueue()
        self._read: deque[tuple[int, Hit]] = deque(maxlen=NEWS)  # from logs that the launcher asked for
        self._leave = threading.Event()
        self._threads = [
            threading.Thread(target=x, daemon=True, name=x.__name__)
            for x in (self._watch_host, self._follow_logs, self._follow_event_files)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after a last reading of the logs, if that does not take long."""
        self._leave.set()
        until = time.monotonic() + LEAVE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def health(self) -> dict[str, object]:
        """Return the latest reading: worst verdict, problems, numbers, and its age in seconds."""
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

    def report(self, news: Sequence[Finding]) -> None:
        """Add to the node's findings, and alarm the launcher of faults. From any thread."""
        self._news.add(news)
        self.alarms.add(news)

    @property
    def reported(self) -> Mapping[str, edges.Reported]:
        """What a former agent has reported, by check."""
        return self._findings.reported

    def cause(self, launch: int, seconds: float = SECONDS) -> dict[str, object]:
        """Return what the logs of the launch's ranks on this node say (see `logs.read_cause`)."""
        answer, hits = self._logs.cause(launch, self._rows(), seconds)
        self._read.extend((launch, hit) for hit in hits if matches.worth_reporting(hit))
        return answer

    def _watch_host(self) -> None:
        reported: Mapping[str, edges.Reported] = self._findings.reported
        while True:
            reading = self._reader.read_host()
            judged = host_watch.judge_host(reading, self._reading)
            self._reading, self._judged = reading, judged
            reported, news = edges.changes(reported, judged, host_watch.EVENTS)
            self.report(news)
            if self._leave.wait(HEALTH):
                return

    def _follow_event_files(self) -> None:
        """They may be on a file system that does not answer, when the logs must still be read."""
        while not self._leave.wait(LOGS):
            self._logs.events.look(self._rows())

    def _follow_logs(self) -> None:
        leaving = False
        while True:
            with contextlib.suppress(OSError):  # the run directory does not answer: retry later
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
                self._findings.report(
                    HOST + edges.key(found), found.verdict, found.evidence, None, launch, always=always
                )
            except OSError:
                self._news.put_back(found)
                raise
        # the next launch may start before the logs of a short one were read
        read = [self._read.popleft() for _ in range(len(self._read))]
        for of, hit in (*self._logs.look(rows), *read):
            category = hit.rule.category.value if hit.rule.category else ""
            self._findings.report(LOG + category, _verdict(hit), hit.record.text, hit.record.rank, of)


def _verdict(hit: Hit) -> Verdict:
    """Return the verdict: a line by which a rule would exclude the node is a suspicion."""
    return Verdict.SUSPECT if hit.rule.action is Action.ISOLATE and hit.rule.confidence >= SURE else Verdict.MONITOR
