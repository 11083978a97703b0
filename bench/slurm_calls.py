"""What one call to Slurm costs, call by call: its commands beside pyslurm, on a real cluster that has both.

    python bench/slurm_calls.py [--release forky] [--times 50] [--jobs 298] [--json FILE]

Wall-clock milliseconds (median, and the slowest of twenty) and milliseconds of CPU on the asking side, for the calls
that an operator makes. Needs what `transom sandbox up --release` needs, and builds the release where it is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from transom_cli.errors import TransomError
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.release.known import ReleaseHome
from transom_cli.sandbox.release.obtain import default_folder, obtain
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import JobState, Slurm, Submission
from transom_cli.slurm.pyslurm.client import PySlurm
from transom_cli.slurm.runner import Runner

SLOW = 0.95


@dataclass(frozen=True)
class Cost:
    """Of one call, in milliseconds. ``cpu``: of whoever asks Slurm, not of Slurm."""

    median: float
    slow: float
    cpu: float


def measure(call: Callable[[], object], times: int, cpu: Callable[[], float]) -> Cost:
    took = []
    before = cpu()
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - began))
    took.sort()
    return Cost(statistics.median(took), took[int(SLOW * (times - 1))], 1000 * (cpu() - before) / times)


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_worker(client: PySlurm) -> psutil.Process:
    began = time.perf_counter()
    client.jobs()
    took = time.perf_counter() - began
    (worker,) = (p for p in psutil.Process().children() if "worker.py" in " ".join(p.cmdline()))
    print(f"pyslurm's process: first answer after {took:.2f} s, holds {worker.memory_info().rss / 1e6:.0f} MB\n")
    return worker


def calls(slurm: Slurm, running: int, held: int, nodes: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    """By their names in the port. Each can be repeated, and leaves the cluster as it was but for a comment."""

    def drain_and_undrain() -> None:
        slurm.drain(nodes[3], "a bench")
        slurm.undrain(nodes[3], reason="a bench")

    return {
        "jobs": slurm.jobs,
        "job": lambda: slurm.job(running),
        "nodes, one": lambda: slurm.nodes(nodes[:1]),
        "nodes, all four": slurm.nodes,
        "set_comment": lambda: slurm.set_comment(held, "transom:bench"),
        "update_pending, exclusion": lambda: slurm.update_pending(held, exclude=nodes[2:3]),
        "requeue_hold, of one held already": lambda: slurm.requeue_hold(held),
        "signal, to the batch shell": lambda: slurm.signal(running, "CONT", batch=True),
        "drain and undrain (4 calls)": drain_and_undrain,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", default="forky")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=298, help="held jobs for the last row")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    got = obtain(asked.release, default_folder(), lambda words: print(words, file=sys.stderr))
    python = ReleaseHome(got.home.path).python
    if not python.exists():
        raise TransomError(f"{asked.release} has no pyslurm", got.why_no_pyslurm)
    with tempfile.TemporaryDirectory(prefix="tsm-", dir="/tmp") as folder:
        sandbox = Sandbox.up(SandboxSpec(Path(folder) / "sb", home=str(got.home.path)))
        try:
            rows = bench(sandbox, str(python), asked.times, asked.jobs, Path(folder))
        finally:
            sandbox.down()
    print(f"Slurm {got.slurm}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {asked.times} times each; ms\n")
    print("| call | commands: median | 95 % | CPU | pyslurm: median | 95 % | CPU |\n|---|---|---|---|---|---|---|")
    for name, (cli, py) in rows.items():
        shown = (f"{x:.1f}" for cost in (cli, py) for x in asdict(cost).values())
        print(f"| {name} | {' | '.join(shown)} |")
    if asked.json:
        rows_as = {name: {"commands": asdict(cli), "pyslurm": asdict(py)} for name, (cli, py) in rows.items()}
        asked.json.write_text(json.dumps({"schema": 1, "slurm": got.slurm, "rows": rows_as}, indent=1) + "\n")
    return 0


def bench(sandbox: Sandbox, python: str, times: int, jobs: int, folder: Path) -> dict[str, tuple[Cost, Cost]]:
    runner = Runner(env={**os.environ, **sandbox.env()})
    cli, py = CliSlurm(runner), PySlurm(python, runner)
    script = folder / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 3600\n")
    small = ("--mem=100", "--output=/dev/null")
    running = cli.submit(Submission(script, (*small, "--nodes=2")))
    held = cli.submit(Submission(script, (*small, "--hold")))
    while cli.job(running).state is not JobState.RUNNING:
        time.sleep(0.2)
    time.sleep(2)  # until its steps can be signalled
    worker = start_worker(py)
    ours, theirs = (calls(slurm, running, held, sandbox.node_names) for slurm in (cli, py))

    def worker_cpu() -> float:
        return sum(worker.cpu_times()[:2])

    rows = {n: (measure(ours[n], times, children_cpu), measure(theirs[n], times, worker_cpu)) for n in ours}
    for _ in range(jobs):
        cli.submit(Submission(script, (*small, "--hold")))
    rows[f"jobs, {jobs + 2} of them"] = (measure(cli.jobs, times, children_cpu), measure(py.jobs, times, worker_cpu))
    for call, why in py.detours.items():
        print(f"by the commands all the same: {call}: {why}", file=sys.stderr)
    py.close()
    return rows


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TransomError as error:
        sys.exit(str(error))
