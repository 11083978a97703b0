"""Watches the node's GPUs through a process of its own (health.gpu.watch), because NVML may hang.

Readings are judged one by one, and NVML's own events, such as an Xid, are reported at once. The newest readings are
also kept in the run directory, for screens.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from transom_cli.core.codec import BadRecord, build
from transom_cli.files import replace_text
from transom_cli.health import finding
from transom_cli.health.check import limits_of, unwanted
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.monitor import GpuMonitor, summarize
from transom_cli.health.gpu.reading import GpuLimits, NvmlReading
from transom_cli.health.gpu.status import BadStatus, NodeGpus, decode, encode, gpus_of
from transom_cli.health.gpu.xid import EventHistory, GpuEvent, judge_event
from transom_cli.layout import AttemptDir
from transom_cli.start import own
from transom_cli.supervise.agent.node_health import Watched

HUNG = 3.0  # times the interval without a line after which NVML counts as hanging
AGAIN = 60.0  # seconds before a watcher that died is restarted
CHECK = "gpu_watch"
EVERY = 25.0  # seconds between two writes; a little less than between two readings, so that none is skipped


class GpuFile:
    """Keeps the newest readings in the run directory, `nodes/<node>.gpus`.

    Its own thread writes, so that a hanging file system does not delay reports to the launcher. One file of about 3 KiB
    per node, replaced every 25 s at most: 3 file-system operations each, or 123 per second for 1,024 nodes.
    """

    def __init__(self, attempt: AttemptDir, node: str) -> None:
        self.attempt, self.node = attempt.name, node
        self._path = attempt.gpus(node)
        self._newest: NodeGpus | None = None
        self._fresh, self._leave = threading.Event(), threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpu-file", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()
        self._fresh.set()

    def put(self, status: NodeGpus) -> None:
        """Store it. From any thread; returns at once."""
        self._newest = status
        self._fresh.set()

    def former(self) -> Mapping[str, tuple[int, float]]:
        """Return each GPU's last Xid and its time, from a former agent."""
        try:
            status = decode(self._path.read_text())
        except (OSError, UnicodeError, BadStatus):
            return {}
        return {one.uuid: (one.xid, one.xid_at) for one in gpus_of(status) if one.uuid and one.xid and one.xid_at}

    def _run(self) -> None:
        while self._fresh.wait() and not self._leave.is_set():
            self._fresh.clear()
            if self._newest is not None:
                with contextlib.suppress(
                    OSError
                ):  # full or absent: the file's age shows it, and the next write retries
                    replace_text(self._path, encode(self._newest))
            if self._leave.wait(EVERY):
                return


class Gpus:
    """Starts nothing if the job has no GPUs. `report` and `reported` as in `node_health.Watch`."""

    def __init__(
        self,
        node: str,
        what: Watched,
        report: Callable[[Sequence[Finding]], None],
        reported: Mapping[str, finding.Reported],
        file: GpuFile,
    ) -> None:
        self._node, self._what, self._report, self._file = node, what, report, file
        self._reported = dict(reported)
        self._limits: GpuLimits = limits_of(GpuLimits, what.limits)
        self._follow = GpuMonitor(node, what.about, self._limits)
        self._xids = EventHistory()
        self._judged: tuple[Finding, ...] = ()  # of the last reading
        self._child: subprocess.Popen[bytes] | None = None
        self._heard = threading.Event()
        self._leave = threading.Event()

    def start(self) -> None:
        if self._what.every and self._what.about.gpus:
            self._xids = EventHistory(self._file.former())
            self._file.start()
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Stop without waiting. The watcher ends when its stdin closes, even if NVML hangs."""
        self._leave.set()
        self._file.stop()
        child = self._child
        if child is not None and child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    def _run(self) -> None:
        threading.Thread(target=self._watch_for_silence, name="gpus", daemon=True).start()
        while not self._leave.is_set():
            absent = self._watch()
            if absent or self._leave.wait(AGAIN):
                return

    def _watch(self) -> bool:
        """Run one watcher to its end. Return True if there is no NVML, so that another one is useless."""
        what = self._what
        argv = own("transom_cli.health.gpu.watch", "--every", f"{what.every:g}", "--gpus", str(what.about.gpus))
        try:
            self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            self._news((Finding(CHECK, Verdict.UNKNOWN, self._node, f"no watcher of GPUs: {error}"),))
            return False
        assert self._child.stdout is not None
        absent = False
        for line in self._child.stdout:
            self._heard.set()
            absent = self._take(line) or absent
        code = self._child.wait()
        self._xids.set_listening(False, 0.0)  # until the next one does
        if code and not self._leave.is_set():
            words = f"the watcher of the GPUs has ended with exit code {code}"
            self._news((Finding(CHECK, Verdict.UNKNOWN, self._node, words),))
        return absent

    def _take(self, line: bytes) -> bool:
        try:
            said = json.loads(line)
            if "reading" in said:
                self._look(build(NvmlReading, said["reading"]), listens=said.get("events") is True)
            elif "event" in said:
                self._happened(build(GpuEvent, said))
            elif "absent" in said:
                self._news((Finding("gpu_count", Verdict.UNKNOWN, self._node, f"no NVML: {said['absent']}"),))
                return True
        except (ValueError, TypeError, BadRecord):
            pass  # a line printed by a library
        return False

    def _look(self, reading: NvmlReading, *, listens: bool) -> None:
        self._judged = self._news(self._follow.judge(reading))
        self._xids.set_listening(listens, reading.wall)
        self._show()

    def _happened(self, event: GpuEvent) -> None:
        found = judge_event(self._node, event)
        wanted = not unwanted(found.check, self._what.off)
        self._report([found] if wanted else [])
        self._xids.add(event, found, counts=wanted)
        self._show()

    def _show(self) -> None:
        reading, file, every = self._follow.last, self._file, max(self._what.every, EVERY)
        if reading is not None:
            about, limits = self._what.about, self._limits
            file.put(summarize(file.node, file.attempt, every, reading, self._judged, self._xids, about, limits))

    def _watch_for_silence(self) -> None:
        """Report a watcher without output. The driver or a library may hang, so it is not a suspicion."""
        while not self._leave.is_set():
            self._heard.clear()
            if self._leave.wait(HUNG * self._what.every) or self._heard.is_set():
                continue
            if self._child is not None and self._child.poll() is None:
                words = f"NVML has not answered for {HUNG * self._what.every:.0f} s"
                self._news((Finding(CHECK, Verdict.MONITOR, self._node, words, Remedy.WATCH),))

    def _news(self, states: Sequence[Finding]) -> tuple[Finding, ...]:
        """Report what has changed, and return the findings that are not switched off."""
        wanted = tuple(f for f in states if not unwanted(f.check, self._what.off))
        self._reported, news = finding.changes(self._reported, wanted)
        self._report(news)
        return wanted
