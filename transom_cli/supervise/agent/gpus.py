"""Watches the node's GPUs through a process of its own (health.gpu.watch): NVML may hang, and is not ours to load here.

What it reads is judged look by look; what NVML tells of by itself, a Xid say, is told at once. The newest readings are
left in the run directory besides, for screens (agent/gpufile).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from transom_cli.core.codec import BadRecord, build
from transom_cli.health import finding
from transom_cli.health.check import limits_of, unwanted
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.monitor import GpuMonitor, summarize
from transom_cli.health.gpu.reading import GpuLimits, NvmlReading
from transom_cli.health.gpu.xid import EventHistory, GpuEvent, judge_event
from transom_cli.start import own
from transom_cli.supervise.agent.gpufile import EVERY, GpuFile
from transom_cli.supervise.agent.watching import Watched

HUNG = 3.0  # so many times the pace without a line, and NVML counts as hanging
AGAIN = 60.0  # seconds before a watcher that has died is started again
CHECK = "gpu_watch"


class Gpus:
    """Nothing is started where the job has no GPUs. `tell` and `told` as in `watching.Watch`."""

    def __init__(
        self,
        node: str,
        what: Watched,
        tell: Callable[[Sequence[Finding]], None],
        told: Mapping[str, finding.Reported],
        file: GpuFile,
    ) -> None:
        self._node, self._what, self._tell, self._file = node, what, tell, file
        self._told = dict(told)
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
        """The watcher ends with its stdin, also while NVML hangs; it is not waited for."""
        self._leave.set()
        self._file.stop()
        child = self._child
        if child is not None and child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    def _run(self) -> None:
        threading.Thread(target=self._listen_for_silence, name="gpus", daemon=True).start()
        while not self._leave.is_set():
            absent = self._watch()
            if absent or self._leave.wait(AGAIN):
                return

    def _watch(self) -> bool:
        """One watcher's life. True: there is no NVML, and no other one would find any."""
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
            pass  # a line that a library printed
        return False

    def _look(self, reading: NvmlReading, *, listens: bool) -> None:
        self._judged = self._news(self._follow.judge(reading))
        self._xids.set_listening(listens, reading.wall)
        self._show()

    def _happened(self, event: GpuEvent) -> None:
        found = judge_event(self._node, event)
        wanted = not unwanted(found.check, self._what.off)
        self._tell([found] if wanted else [])
        self._xids.add(event, found, counts=wanted)
        self._show()

    def _show(self) -> None:
        reading, file, every = self._follow.last, self._file, max(self._what.every, EVERY)
        if reading is not None:
            about, limits = self._what.about, self._limits
            file.put(summarize(file.node, file.attempt, every, reading, self._judged, self._xids, about, limits))

    def _listen_for_silence(self) -> None:
        """It cannot be told from here whether the driver or a library hangs: worth watching, and no more."""
        while not self._leave.is_set():
            self._heard.clear()
            if self._leave.wait(HUNG * self._what.every) or self._heard.is_set():
                continue
            if self._child is not None and self._child.poll() is None:
                words = f"NVML has not answered for {HUNG * self._what.every:.0f} s"
                self._news((Finding(CHECK, Verdict.MONITOR, self._node, words, Remedy.WATCH),))

    def _news(self, states: Sequence[Finding]) -> tuple[Finding, ...]:
        """Those that are wanted."""
        wanted = tuple(f for f in states if not unwanted(f.check, self._what.off))
        self._told, news = finding.changes(self._told, wanted)
        self._tell(news)
        return wanted
