"""Observe a chaos run during and after its life: checkpoints, launches, jobs, processes, drains."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection
from pathlib import Path

from chaos_faults import Place
from chaos_judge import Resumed, Said
from harness import Bench, LiveRun

from transom_cli.ckpt.inventory import candidates, survey, verify
from transom_cli.errors import TransomError
from transom_cli.sandbox import processes
from transom_cli.supervise.lease import read_holder

GONE = 45.0  # seconds for the last processes of an ended job: KillWait is 30
_FROM = re.compile(r"^training from step (\d+) to ", re.MULTILINE)
_DRAINED = re.compile(r"update_node: node (\S+) state set to DRAIN")


class Watch:
    """Polled a few times a second; asks Slurm once a second. Reads below the shared disk: never waits for it."""

    def __init__(self, bench: Bench, run: LiveRun, place: Place) -> None:
        self._bench, self._run = bench, run
        self._dir = place.run_below(run.name)
        self._log_from = len(bench.controller_log())
        self.newest: list[int] = []
        self.together: set[str] = set()
        self._floors: dict[str, int] = {}  # by launch: the newest good checkpoint before its logs' folder was seen
        self._asked = 0.0

    def look(self) -> None:
        for folder in self._launches():
            self._floors.setdefault(_launch_name(folder), self.newest[-1] if self.newest else -1)
        good = self._newest_good()
        if not self.newest or good != self.newest[-1]:
            self.newest.append(good)
        if time.monotonic() - self._asked > 1.0:
            self._asked = time.monotonic()
            running = self._jobs("RUNNING")
            if len(running) > 1:
                self.together.add(", ".join(running))

    def _newest_good(self) -> int:
        """A folder may be renamed or deleted during the look; then the next look shows it."""
        try:
            found = (c.step for c in candidates(self._dir.checkpoints) if survey(c).good)
            return next(found, -1)
        except OSError:
            return self.newest[-1] if self.newest else -1

    def _launches(self) -> list[Path]:
        return sorted(self._dir.attempts.glob("*/logs/*"))

    def _jobs(self, states: str) -> list[str]:
        try:
            listed = self._bench.sandbox.slurm("squeue", "-h", "-a", "-t", states, "-o", "%A_%T", timeout_s=2.0)
        except TransomError:
            return []  # the controller is dead or hangs
        return listed.split()

    @property
    def launch(self) -> int:
        """The newest launch of the newest attempt."""
        return max((int(folder.name) for folder in self._launches()[-1:]), default=-1)

    def recovered(self) -> bool:
        """Whether the launcher of the newest attempt has recovered from all that it has seen."""
        journals = sorted(self._dir.attempts.glob("*/launcher.jsonl"), key=lambda path: path.stat().st_mtime)
        text = journals[-1].read_text() if journals else ""
        return text.rfind('"what": "seen"') <= text.rfind('"what": "recovered"')

    # --- afterwards ---

    def said(self, began: float) -> tuple[Said, ...]:
        """What launchers say about recoveries, and rank 0 in its logs. began: the submission, in seconds since the
        epoch."""
        found = []
        for folder in self._launches():
            log = (folder / "rank-0.log").read_text(errors="replace") if (folder / "rank-0.log").exists() else ""
            ours = [line[9:200] for line in log.splitlines() if line.startswith("transom: ")]
            found += [Said(0.0, f"rank 0 of {_launch_name(folder)}", line) for line in ours[:6]]
        for path in sorted(self._dir.attempts.glob("*/launcher.jsonl")):
            for record in map(json.loads, path.read_text().splitlines()):
                about = record.get("what", record["type"])
                if record["type"] == "standby" or about in ("seen", "reentry", "recovered", "joined", "decided"):
                    about = f"standby {about}" if record["type"] == "standby" else about
                    found.append(Said(round(record["wall"] - began, 1), about, record.get("words", "")))
        return tuple(found)

    def unexplained(self) -> tuple[str, ...]:
        """Launches after the first of an attempt for which the launcher's journal does not say who stayed or why not,
        or whether standbys were used."""
        found = []
        for path in sorted(self._dir.attempts.glob("*/launcher.jsonl")):
            said: set[str] = set()
            for record in map(json.loads, path.read_text().splitlines()):
                said.add(record["what"] if record["type"] == "recovery" else record["type"])
                if record["type"] == "launch":
                    lacking = {"reentry", "standby"} - said if record["launch"] else set()
                    found += [f"{path.parent.name}.{record['launch']} ({what})" for what in sorted(lacking)]
                    said = set()
        return tuple(found)

    def resumed(self) -> tuple[Resumed, ...]:
        resumed = []
        for folder in self._launches():
            log = folder / "rank-0.log"
            found = _FROM.search(log.read_text(errors="replace")) if log.exists() else None
            name = _launch_name(folder)
            if found is not None:
                resumed.append(Resumed(name, self._floors.get(name, -1), int(found[1])))
        return tuple(resumed)

    def damaged(self) -> str:
        """What is wrong with the newest checkpoint that counted as good, all its bytes read."""
        found = next((c for c in candidates(self._dir.checkpoints) if survey(c).good), None)
        verdict = verify(found) if found is not None else None
        return "" if verdict is None or verdict.good else verdict.reason

    def drained(self) -> tuple[str, ...]:
        return tuple(_DRAINED.findall(self._bench.controller_log()[self._log_from :]))

    def controller_log(self) -> str:
        return self._bench.controller_log()[self._log_from :]

    def unended(self) -> tuple[str, ...]:
        """Jobs that are pending or running, once there has been time for them to end."""
        deadline = time.monotonic() + GONE
        while (left := self._jobs("PENDING,RUNNING,SUSPENDED")) and time.monotonic() < deadline:
            time.sleep(0.5)
        return tuple(left)

    def left(self, taken: Collection[str]) -> tuple[str, ...]:
        """Job processes on nodes that nothing was done to, which outlived their job. What a node's death leaves
        half-ended on that node is the machine's."""
        deadline = time.monotonic() + GONE
        while (found := self._job_processes(taken)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return tuple(found)

    def _job_processes(self, taken: Collection[str]) -> list[str]:
        cluster = self._bench.sandbox.cluster
        mine = [p for p in processes.of_sandbox(cluster) if processes.is_job_process(p, cluster)]
        return [_words(p) for p in mine if p.environ["SLURMD_NODENAME"] not in taken]

    def operators(self) -> tuple[str, ...]:
        """Living operators of this run, by its lease, after a moment in which they may leave."""
        deadline = time.monotonic() + 10.0
        while (found := self._operators()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return tuple(found)

    def _operators(self) -> list[str]:
        holder = read_holder(self._run.dir)
        if holder is None or holder.released or not holder.here() or not holder.alive_here():
            return []
        return [f"pid {holder.pid}: {' '.join(_command(holder.pid))}"]


def _launch_name(folder: Path) -> str:
    return f"{folder.parents[1].name}.{folder.name}"


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _words(proc: processes.Proc) -> str:
    where = f"job {proc.environ['SLURM_JOB_ID']} on {proc.environ['SLURMD_NODENAME']}"
    return f"pid {proc.pid} ({proc.state}) of {where}: {' '.join(_command(proc.pid))[:200]}"
