"""Preflights of healthy nodes on a real Slurm: none may have a finding above MONITOR.

One job holds the sandbox's four nodes, and each preflight is one step in it, as in an attempt. The start of the
interpreter and of torch are measured separately; the remaining seconds are transom's.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness import Bench, progress, wait_for

from transom_cli.health.check import About
from transom_cli.health.checks.run_dir import token
from transom_cli.health.finding import Verdict
from transom_cli.health.report import Report
from transom_cli.health.run import HealthRequest, check_job
from transom_cli.slurm.port import JobState, Submission

NODES = ("node1", "node2", "node3", "node4")
TARGET = 10.0  # seconds beyond the interpreters' start
BUDGET = 60.0  # seconds: none is to be cut short for being measured on a busy machine


@dataclass(frozen=True)
class Healthy:
    """Seconds, per report. came: until all node workers had started (Slurm's step and the interpreters). torch: waiting
    for its import after the readings, which run meanwhile. rest: everything else."""

    reports: tuple[Report, ...]

    @property
    def alarms(self) -> list[str]:
        return [
            f"{f.node}: {f.check} {f.verdict.value}: {f.evidence}"
            for report in self.reports for f in report.findings if f.verdict.bad
        ]  # fmt: skip

    @property
    def monitored(self) -> Counter[str]:
        return Counter(f.check for r in self.reports for f in r.findings if f.verdict is Verdict.MONITOR)

    @property
    def unknown(self) -> Counter[str]:
        return Counter(f.check for r in self.reports for f in r.findings if f.verdict is Verdict.UNKNOWN)

    @property
    def whole(self) -> list[float]:
        return [report.seconds["all"] for report in self.reports]

    @property
    def came(self) -> list[float]:
        return [report.seconds["start"] for report in self.reports]

    @property
    def torch(self) -> list[float]:
        return [report.seconds.get("hello", 0.0) for report in self.reports]

    @property
    def rest(self) -> list[float]:
        return [a - b - c for a, b, c in zip(self.whole, self.came, self.torch, strict=True)]

    @property
    def well(self) -> bool:
        return not self.alarms and median(self.rest) <= TARGET

    def lines(self) -> list[str]:
        rows = (
            ("whole preflight", self.whole),
            ("until the workers were there", self.came),
            ("waiting for torch's import", self.torch),
            ("the rest, ours", self.rest),
        )
        lines = [
            f"{len(self.reports)} healthy preflights on {len(NODES)} nodes of a real Slurm, quick tier with the probe"
        ]
        lines += [f"  {name:<32}median {median(values):5.1f} s, worst {max(values):5.1f} s" for name, values in rows]
        lines.append(f"  target: {TARGET:.0f} s or less beyond the interpreters' start")
        lines.append(f"  MONITOR, by check: {_counted(self.monitored)}")
        lines.append(f"  no answer (UNKNOWN), by check: {_counted(self.unknown)}")
        lines += [f"  FALSE ALARM: {words}" for words in self.alarms]
        lines.append(f"  findings above MONITOR: {len(self.alarms)}")
        return lines

    def document(self) -> dict[str, Any]:
        return {
            "preflights": len(self.reports),
            "above_monitor": self.alarms,
            "monitor": dict(self.monitored),
            "unknown": dict(self.unknown),
            "seconds": [dict(report.seconds) for report in self.reports],
        }


def _counted(checks: Counter[str]) -> str:
    return ", ".join(f"{name} {times}" for name, times in checks.most_common()) or "none"


def healthy(number: int) -> Healthy:
    reports = []
    with Bench(nodes=len(NODES)) as bench, _asking(bench):
        job = _hold(bench)
        for n in range(1, number + 1):
            reports.append(_preflight(bench, job))
            bad = sum(f.verdict.bad for f in reports[-1].findings)
            if bad or n % 10 == 0 or n == 1:
                progress(f"healthy preflight {n}/{number}: {reports[-1].seconds['all']:.1f} s, {bad} above MONITOR")
        bench.slurm.cancel(job)
    return Healthy(tuple(reports))


@contextmanager
def _asking(bench: Bench) -> Iterator[None]:
    """This process talks with the sandbox's Slurm, and with no other."""
    former = dict(os.environ)
    os.environ.clear()
    os.environ.update(bench.env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


def _hold(bench: Bench) -> int:
    path = bench.dir / "hold.sbatch"
    path.write_text("#!/bin/bash\nsleep 86400\n")
    options = (f"--nodes={len(NODES)}", "--gpus-per-node=1", "--output=/dev/null")
    job = bench.slurm.submit(Submission(path, options, (), bench.env, bench.dir))
    wait_for(lambda: bench.slurm.job(job).state is JobState.RUNNING, 60.0, "the job that holds the nodes")
    return job


def _preflight(bench: Bench, job: int) -> Report:
    """As in `supervise.launcher.preflight`, but without GPUs."""
    run: Path = bench.runs
    run.mkdir(exist_ok=True)
    words, path = secrets.token_hex(16), run / "preflight.token"
    path.write_text(words)
    about = About(folders=(str(run),), token=token(str(path), words))
    return check_job(job, NODES, HealthRequest(about, budget=BUDGET))
