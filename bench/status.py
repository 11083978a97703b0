"""Measure the time of `transom status` on a run of many nodes: generate such a run directory, call it, print the times.

    python bench/status.py [--nodes 1024] [--ranks 8] [--times 7] [--keep DIR]

For comparison, it shows how long Python and the command line take to start. Slurm is not asked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.core import events as ev
from transom_cli.core.codec import plain
from transom_cli.core.operator.state import Policy
from transom_cli.health.gpu.status import GpuStatus, NodeGpus, with_gpus
from transom_cli.health.gpu.status import encode as encode_gpus
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.lease import Lease

JOB = 48213
HOURS = 6


def make(folder: Path, nodes: int, ranks: int) -> RunDir:
    """A run that has trained for hours, with memory, findings and GPUs; one node is slow, one silent, one suspect."""
    run = RunDir(folder / "llama-70b-20261122-065825-c382")
    run.attempts.mkdir(parents=True)
    run.settings.write_text('name = "llama-70b"\nsteps = 120000\n[job]\ntime = "24:00:00"\n')
    write_header(run.journal, Policy(), nodes)
    names = tuple(f"gpu{i:04d}" for i in range(nodes))
    now = time.time()
    start = now - HOURS * 3600
    journal = Journal(run.journal, Lease.take(run).epoch)
    journal.append(ev.Started(start, 1))
    journal.append(ev.Submitted(start + 1, "submit", JOB, True))
    journal.append(ev.JobSeen(start + 9, JOB, 0, "RUNNING", nodes=names, batch_host=names[0]))
    journal.append(ev.LaunchSeen(start + 20, f"{JOB}.0", 0, names, nodes * ranks))
    for minute in range(1, HOURS * 60):
        at = start + 60 * minute
        journal.append(ev.StepSeen(at, f"{JOB}.0", 26 * minute))
        if minute % 15 == 0:
            journal.append(ev.CheckpointSeen(at, 26 * minute))
    journal.close()
    attempt = run.attempt(JOB, 0)
    attempt.nodes.mkdir(parents=True)
    step = 26 * HOURS * 60
    for i, node in enumerate(names):
        beats = tuple(RankBeat(i * ranks + r, 0, step, step, 1.2, 1.83, "step", 4000 + r, "R") for r in range(ranks))
        (attempt.nodes / f"{node}.beats").write_bytes(encode(NodeTable(node, attempt.name, 99, beats)))
        attempt.memory(node).write_text(json.dumps({"schema": 1, "trainings": [_account(run, step, i, ranks, nodes)]}))
        attempt.gpus(node).write_text(encode_gpus(_gpus(node, attempt.name, now, ranks)))
        found = {"schema": 1, "wall": now, "kind": "host:clock", "verdict": "monitor", "words": "no NTP runs"}
        attempt.findings(node).write_text(json.dumps({**found, "rank": None, "launch": 0}) + "\n")
    if nodes > 3:
        silent = attempt.nodes / f"{names[1]}.beats"
        os.utime(silent, (now - 48, now - 48))
        found |= {"kind": "host:gpu_heat", "verdict": "suspect", "words": "GPU 3 throttles at 87 C"}
        attempt.findings(names[2]).write_text(json.dumps({**found, "rank": None, "launch": 0}) + "\n")
        clue = {"source": "beats", "culprits": [{"node": names[3]}]}
        told = {"what": "slow_node", "step": 9, "words": f"a node is slow; rank 24 on {names[3]}", "clue": clue}
        attempt.reports.write_text(json.dumps({"schema": 1, "standing": [told], "phases": None, "lines": []}))
    return run


def _gpus(node: str, attempt: str, now: float, count: int) -> NodeGpus:
    told = NodeGpus(node, attempt, now, 30.0, count, count, xids_since=now - HOURS * 3600)
    gpus = (
        GpuStatus(
            i, f"GPU-{node}-0f0e0d0c-0b0a-0908-{i}", "NVIDIA H100 80GB HBM3", "", 99, 61, 87, "light",
            61 << 30, 80 << 30, 641.5, 700.0, (), 0, 3, rows_pending=False, rows_failed=False,
        )
        for i in range(count)
    )  # fmt: skip
    return with_gpus(told, gpus)


def _account(run: RunDir, step: int, node: int, ranks: int, nodes: int) -> object:
    here = tuple(Held(node * ranks + r, f"rank-{node * ranks + r}", 1 << 30) for r in range(ranks))
    held = [
        Step(n, "2026-11-22T06:58:25+00:00", f"{JOB}.0", nodes * ranks, 1 << 40, nodes * ranks, here, ())
        for n in (step, step - 1)
    ]
    return plain(Account(str(run.checkpoints), tuple(held), "rs:4+2", step, (), 1 << 33, 1 << 34, nodes))


def times(words: Sequence[str], count: int) -> tuple[list[float], list[float]]:
    """Seconds of the wall clock, and of the processor, which other work on the machine does not make longer."""
    wall, spent = [], []
    for _ in range(count):
        before, began = os.times(), time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        wall.append(time.perf_counter() - began)
        after = os.times()
        spent.append(sum(after[2:4]) - sum(before[2:4]))
    return wall, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8, help="on each node")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="make the run directory there, and leave it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make(asked.keep or Path(folder), asked.nodes, asked.ranks)
        path = str(run.path)
        rows = {
            "python, nothing else": ["-c", "pass"],
            "transom --version": ["-m", "transom_cli", "--version"],
            "transom list, no run": ["-m", "transom_cli", "list", "--root", f"{path}/none"],
            f"transom status, {asked.nodes} nodes": ["-m", "transom_cli", "status", path],
            f"transom status --json, {asked.nodes} nodes": ["-m", "transom_cli", "status", "--json", path],
        }
        print(f"{'seconds, of ' + str(asked.times) + ' tries':<40}{'median':>8}{'least':>8}{'CPU':>8}")
        for name, words in rows.items():
            wall, spent = times(words, asked.times)
            print(f"{name:<40}{statistics.median(wall):>8.3f}{min(wall):>8.3f}{statistics.median(spent):>8.3f}")


if __name__ == "__main__":
    main()
