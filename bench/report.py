"""Measure the time of `transom report` on a long run with many incidents, its file size, and how long the operator's
journal alone takes to replay through the core, as when an operator takes over the run.

    python bench/report.py [--days 30] [--incidents 1000] [--nodes 64] [--times 3] [--keep DIR]

The run is generated: a step every 2.3 s, a checkpoint every half hour, and regular faults that the launcher fixes with
a relaunch; every twentieth leads to a requeue. It contains all lines that operator and launchers write.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.codec import event_to_json
from transom_cli.core.operator.state import Policy
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.journal import fold, read_events, write_header

JOB = 48213
A_STEP = 2.3  # seconds
SAVED = 1800.0  # seconds between two checkpoints
BACK = 80.0  # seconds from a fault to the training's next start
AGAIN = 63.0  # and as many more where the job is requeued
FIRST = 680.0  # from the submission to the first start
REQUEUED = 20  # faults for each one that ends in a requeue
LINE = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.4.%d]:17292"


def make(
    folder: Path,
    days: float,
    incidents: int,
    nodes: int,
    *,
    now: float | None = None,
    steps: int = 1_200_000,
    requeued: int = REQUEUED,
    saved: float = SAVED,
) -> RunDir:
    """Make a run directory.

    Args:
        now: When the run ends; the present by default.
        requeued: One fault in this many ends in a requeue.
        saved: Seconds between two checkpoints.
    """
    run = RunDir(folder / "llama-70b-20261122-065825-c382")
    run.attempts.mkdir(parents=True)
    run.settings.write_text(SETTINGS % (steps, nodes))
    write_header(run.journal, Policy(), nodes)
    begin = (time.time() if now is None else now) - days * 86400 - FIRST - AGAIN * (incidents // requeued)
    made = _Made(run, begin, tuple(f"gpu{n:03d}" for n in range(nodes)), saved)
    made.start()
    for number in range(1, incidents + 1):
        made.train(days * 86400 / (incidents + 1) - BACK)
        made.fault(number, requeue=number % requeued == 0)
    made.train(days * 86400 / (incidents + 1))
    made.end()
    return run


SETTINGS = """name = "llama-70b"
steps = %d

[job]
nodes = %d
gpus_per_node = 8
partition = "train"
time = "1-00:00:00"
signal_before = 300

[job.env]
NCCL_DEBUG = "WARN"

[detect]
factor = 8.0
floor = 5.0
"""


class _Made:
    def __init__(self, run: RunDir, at: float, nodes: tuple[str, ...], every: float) -> None:
        self._run, self._at, self._nodes, self._every = run, at, nodes, every
        self._restarts = self._launch = self._step = 0
        self._durable, self._saved = 0, at
        self._journal: list[dict[str, Any]] = []
        self._launcher: list[dict[str, Any]] = []
        self._progress: list[dict[str, Any]] = []

    @property
    def _attempt(self) -> AttemptDir:
        return self._run.attempt(JOB, self._restarts)

    def _tell(self, event: ev.Event) -> None:
        self._journal.append({"epoch": 1, **event_to_json(type(event)(**{**vars(event), "at": self._at}))})

    def _write(self, kind: str, **more: object) -> None:
        self._launcher.append({"type": kind, "wall": self._at, "launch": self._launch, **more})

    def start(self) -> None:
        self._tell(ev.Started(0, 1))
        self._tell(ev.Submitted(0, "submit", JOB, True))
        self._at += 600.0
        self._begin()

    def _begin(self) -> None:
        """The job runs, its nodes are examined, and the ranks start."""
        self._tell(ev.JobSeen(0, JOB, self._restarts, "RUNNING", nodes=self._nodes, batch_host=self._nodes[0]))
        self._write("attempt", nodes=list(self._nodes), host=self._nodes[0], pid=1)
        self._at += 20.0
        self._write(
            "recovery", incident="", what="checked", words=f"{len(self._nodes)} nodes examined in 20 s", cause=""
        )
        self._launches()

    def _launches(self) -> None:
        self._write("launch", nodes=list(self._nodes), idle=[], world_size=8 * len(self._nodes), faults=[])
        self._tell(ev.LaunchSeen(0, self._attempt.name, self._launch, self._nodes, 8 * len(self._nodes)))
        self._at += 60.0

    def train(self, seconds: float) -> None:
        """A line a minute, as operator and launcher write it."""
        end = self._at + seconds
        while self._at < end:
            passed = min(60.0, max(A_STEP, end - self._at))
            self._save_often(passed)
            self._step += round(passed / A_STEP)
            self._at += passed
            self._progress.append({"wall": self._at, "launch": self._launch, "step": self._step})
            self._tell(ev.StepSeen(0, self._attempt.name, self._step))
            if self._at - self._saved >= self._every:
                self._saved, self._durable = self._at, self._step
                self._tell(ev.CheckpointSeen(0, self._step))

    def _save_often(self, seconds: float) -> None:
        """Report the checkpoints within the next `seconds`, if there are several."""
        begin, first = self._at, self._step
        while self._at - begin + self._every < seconds:
            self._at += self._every
            self._saved, self._durable = self._at, first + round((self._at - begin) / A_STEP)
            self._tell(ev.CheckpointSeen(0, self._durable))
        self._at = begin

    def fault(self, number: int, *, requeue: bool) -> None:
        node = self._nodes[number % len(self._nodes)]
        name, attempt = f"l{number}", self._attempt.name
        for wait, what, words in _heals(node, number):
            self._at += wait
            nodes = (node,) if what == "diagnosed" else ()
            told = ev.RecoverySeen(0, attempt, name, what, words, "hang" if what == "diagnosed" else "", nodes)
            self._tell(told)
            about = {k: v for k, v in vars(told).items() if k not in ("at", "attempt", "decided", "faults", "durable")}
            self._write("recovery", **{**about, "nodes": list(told.nodes)})
        self._step = self._durable
        if not requeue:
            self._launch += 1
            self._launches()
            return
        self._write("outcome", status="failed", why=f"no answer from {node}", exit_code=1)
        outcome = ev.OutcomeSeen(0, attempt, "failed", f"no answer from {node}", cause="hang", nodes=self._nodes)
        self._tell(outcome)
        self._save()
        self._at += 3.0
        restarts = self._restarts + 1
        self._tell(ev.Restarted(0, f"i{number}/restart", JOB, restarts, "requeued"))
        self._at += 40.0
        self._restarts, self._launch = restarts, 0
        self._begin()

    def _save(self) -> None:
        """What the launcher of this attempt has written."""
        self._attempt.nodes.mkdir(parents=True, exist_ok=True)
        for path, lines in ((self._attempt.launcher_journal, self._launcher), (self._attempt.progress, self._progress)):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for n, node in enumerate(self._nodes):
            verdict, words = ("suspect", "GPU 3 has 14 uncorrected ECC errors") if n == 5 else ("monitor", "load 91.0")
            found = {"schema": 1, "wall": self._at, "kind": "host:ecc", "verdict": verdict, "words": words}
            self._attempt.findings(node).write_text(json.dumps({**found, "rank": None, "launch": 0}) + "\n")
        self._launcher, self._progress = [], []

    def end(self) -> None:
        self._write("outcome", status="done", why="", exit_code=0)
        self._save()
        self._tell(ev.JobSeen(0, JOB, self._restarts, "COMPLETED", exit_code=0))
        with self._run.journal.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self._journal)


def _heals(node: str, number: int) -> Iterator[tuple[float, str, str]]:
    """Seconds after the line before, what, words."""
    yield 18.4, "seen", f"no step for 18.4 s (limit 18.4 s), rank {number % 512} stands out"
    for other in ("gpu000", "gpu001", node):
        yield 0.4, "evidence", f"rank 0 on {other}, state S, in poll (libc.so.6) < all_reduce (distributed.py:2501)"
    yield 0.3, "examined", f"rank-{number % 512}.log: {LINE % (number % 200)}"
    yield 0.1, "diagnosed", f"a rank hangs in all_reduce; {node} stands out"
    yield 0.1, "decided", "relaunch, by rule `hang` (default)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--incidents", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the run directory there, and leave it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make(asked.keep or Path(folder), asked.days, asked.incidents, asked.nodes)
        told = len(read_events(run.journal))
        for _ in range(asked.times):
            began = time.process_time()
            fold(run.journal)
            print(f"{told:,} lines of the journal replayed: of the processor {time.process_time() - began:.2f} s")
        out = Path(folder) / "report.html"
        for _ in range(asked.times):
            before, began = os.times(), time.perf_counter()
            command = [sys.executable, "-m", "transom_cli", "report", str(run.path), "-o", str(out)]
            subprocess.run(command, check=True, capture_output=True)
            after = os.times()
            spent = sum(after[2:4]) - sum(before[2:4])
            print(f"{time.perf_counter() - began:.2f} s, of the processor {spent:.2f} s; {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
