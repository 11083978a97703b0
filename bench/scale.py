"""What following a run of many nodes costs: the operator's CPU and memory, Slurm calls, and how soon silence is told.

    python bench/scale.py [--nodes 8,64,512,2048] [--ranks 8] [--seconds 30] [--json]

For each size a generator writes a live run directory: each node's beat table once a second by rename, a step a second,
findings of a node now and then, and the log. The real operator follows it in a process of its own, with Slurm in memory
(a call costs nothing there; how many there are is counted). After the measured time one node's table stops. Then
counted is what passes from its last table plus the limit (10 s) until the operator has written `NodeSilent` into its
journal: the lag. Beside it, how each figure grows from the first size to the last: below 1.0 is less than linear.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from status import JOB, make

from transom_cli.beats.table import NodeTable, RankBeat, encode
from transom_cli.core.quiet_shapes import QuietLimits
from transom_cli.layout import RunDir
from transom_cli.slurm.fake import FakeSlurm
from transom_cli.slurm.fake_cluster import FakeJob
from transom_cli.slurm.port import JobState, Submission
from transom_cli.supervise.clock import Clock
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.hands import Hands, Orders
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator import Operator, Pace
from transom_cli.supervise.slurmwatch import SlurmWatch

SETTLE = 5.0  # seconds until the operator has read all that is there
POLL, POLL_MOST = 2.0, 30.0  # the defaults of `slurm.poll` and `slurm.poll_max`
LIMIT = QuietLimits().node_silent


class Cluster:
    """A live run directory, written a second at a time."""

    def __init__(self, folder: Path, nodes: int, ranks: int) -> None:
        self.run = make(folder, nodes, ranks)
        self.run.lease.unlink()
        shutil.rmtree(self.run.epochs)  # the one that made it operates nothing
        self._attempt = self.run.attempt(JOB, 0)
        self.names = [f"gpu{i:04d}" for i in range(nodes)]
        self._ranks, self._step = ranks, 26 * 360
        self.silent: set[str] = set()
        self.last: dict[str, float] = {}
        self.second()

    def second(self) -> None:
        """All tables once, spread over most of the second as agents that started at different times do."""
        began, self._step = time.monotonic(), self._step + 1
        for n, node in enumerate(self.names):
            if node in self.silent:
                continue
            beats = tuple(
                RankBeat(n * self._ranks + r, 0, self._step, self._step, 0.3, 1.83, "step", 4000 + r, "R")
                for r in range(self._ranks)
            )
            path = self._attempt.nodes / f"{node}.beats"
            fresh = path.with_suffix(".new")
            fresh.write_bytes(encode(NodeTable(node, self._attempt.name, 99 + self._step, beats)))
            fresh.replace(path)
            self.last[node] = time.time()
            behind = began + 0.9 * n / len(self.names) - time.monotonic()
            if behind > 0.005:
                time.sleep(behind)
        finding = {"schema": 1, "wall": time.time(), "kind": "host:clock", "verdict": "monitor", "words": "no NTP runs"}
        with self._attempt.findings(self.names[self._step % len(self.names)]).open("a") as file:
            file.write(json.dumps(finding) + "\n")
        with self.run.job_log(JOB).open("a") as file:
            file.write(f"step {self._step} loss 1.83\n")
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))


def operate(run: RunDir, names: list[str], told: Connection) -> None:
    """The operator's process: real but for Slurm. Tells the number of its calls when it is asked to leave."""
    slurm = FakeSlurm(names)
    job = FakeJob(JOB, Submission(run.script), len(names), 0, 0, slurm.user, "llama-70b", "", "main", True, ())
    job.state, job.nodes, job.batch_host = JobState.RUNNING, tuple(names), names[0]
    slurm.cluster.jobs[JOB] = job

    def reach(*_: object) -> Any:
        raise OSError("the bench has no nodes")

    def parts(clock: Clock, inbox: Any, pace: Pace) -> tuple[Follower, SlurmWatch, Hands]:
        orders = Orders(run, Submission(run.script), (), 0, stay_held=False, resubmit=False)
        follower = Follower(run, run.checkpoints, QuietLimits())
        return follower, SlurmWatch(slurm, clock, inbox, pace, orders.tag), Hands(orders, slurm, reach, clock, inbox)

    operator = Operator(run, Lease.take(run), Clock, parts, Pace(POLL, POLL_MOST))
    signal.signal(signal.SIGTERM, lambda *_: operator.leave())
    operator.run()
    told.send(len(slurm.calls))


def measured(nodes: int, ranks: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="transom-scale-") as folder:
        cluster = Cluster(Path(folder), nodes, ranks)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=operate, args=(cluster.run, cluster.names, theirs))
        child.start()
        assert child.pid is not None
        try:
            go_on(cluster, SETTLE)
            seen = psutil.Process(child.pid)
            before, began = sum(seen.cpu_times()[:2]), time.monotonic()
            go_on(cluster, seconds)
            core = (sum(seen.cpu_times()[:2]) - before) / (time.monotonic() - began)
            rss = seen.memory_info().rss
            lag = _lag(cluster)
            alive = time.monotonic() - began + SETTLE
            seen.terminate()
            calls = ours.recv() if ours.poll(40.0) else math.nan
        finally:
            child.kill()
            child.join()
    return {"nodes": nodes, "core": core, "mb": rss / 1e6, "lag": lag, "calls_a_minute": 60 * calls / alive}


def go_on(cluster: Cluster, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cluster.second()


def _lag(cluster: Cluster) -> float:
    victim = cluster.names[len(cluster.names) // 2]
    cluster.silent.add(victim)
    due = cluster.last[victim] + LIMIT
    while time.time() < due + 30.0:
        cluster.second()
        for line in cluster.run.journal.read_text().splitlines()[-50:]:
            record = json.loads(line)
            if record.get("type") == "NodeSilent" and record.get("node") == victim:
                return float(record["at"] + _offset(cluster.run) - due)
    return math.nan


def _offset(run: RunDir) -> float:
    """From the journal's times to the clock's: they are one where nobody set the clock back."""
    return 0.0 if fold(run.journal).last_at <= time.time() + 1.0 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,64,512,2048", help="[8,64,512,2048]")
    parser.add_argument("--ranks", type=int, default=8, help="of a node [8]")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, of each size [30]")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measured(int(nodes), asked.ranks, asked.seconds) for nodes in asked.nodes.split(",")]
    if asked.json:
        print(json.dumps({"rows": rows, "ranks": asked.ranks, "seconds": asked.seconds}))
        return
    print(f"{'nodes':>6} {'of a core':>10} {'MB':>6} {'lag s':>7} {'Slurm calls/min':>16}")
    for row in rows:
        line = f"{row['nodes']:>6} {row['core']:>10.2%} {row['mb']:>6.0f} {row['lag']:>7.2f}"
        print(f"{line} {row['calls_a_minute']:>16.1f}")
    first, last = rows[0], rows[-1]
    if last["nodes"] > first["nodes"]:
        times = last["nodes"] / first["nodes"]
        power = {key: math.log(last[key] / first[key]) / math.log(times) for key in ("core", "mb")}
        print(
            f"from {first['nodes']} to {last['nodes']} nodes ({times:g} times), growth as nodes to the power of:",
            end=" ",
        )
        print(f"CPU {power['core']:.2f}, memory {power['mb']:.2f}")


if __name__ == "__main__":
    main()
