"""Kill a rank every 25 s for 15 minutes: do operator, launcher, agents and snapshot daemons stay as small as they were?

    python bench/endurance.py [--minutes 15] [--every 25] [--json]

One run under transom on 3 of a sandbox's 4 nodes. A rule of its policy relaunches in any case: by default, a node whose
ranks die again and again is checked, and the job is requeued without it, which replaces all processes. Just before each
kill, the bench reads memory, open file descriptors and threads of each process from /proc, and counts temporary files:
in the job's TMPDIR, in the nodes' heartbeat directories, and under temporary names in the run directory. The medians of
the first and the last third are compared, after the first kills. A kill waits until the run has recovered from the one
before, and has saved again. Exit code 1 if something has grown by more than its budget, or if a process was replaced.

"MB" is the memory that no other process shares (USS). Resident memory would count the buffers that the snapshot daemons
share with the ranks, once in each process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from harness import GPT, Bench, BenchError, LiveRun, progress, run_bench, surroundings, wait_for

from transom_cli.core.operator.state import Phase
from transom_cli.heartbeat.paths import SUFFIX
from transom_cli.sandbox import fault_processes, faults, processes
from transom_cli.supervise.lease import read_holder

WARM = 3  # kills before the first sample that counts
DELAY = 0.1  # seconds that a step takes at least
PROGRESS = 25  # steps between two kills: more than one checkpoint is written
LONGEST = 180.0  # seconds for a recovery, on a busy machine
RULES = """
[[policy.rules]]
name = "relaunch-in-any-case"
cause = ["rank_killed", "rank_failed"]
action = "relaunch"
"""
BUDGET = {"MB": 2.0, "descriptors": 2.0, "threads": 1.0, "temporary files": 2.0}
"""Most growth from the first third to the last, of each process."""
_MODULES = {
    "transom_cli.supervise.agent.agent": "agent",
    "transom_cli.ckpt.snapshot.daemon": "snapshot daemon",
}


@dataclass
class Series:
    """One figure of one process, before each kill. A process that was replaced has several PIDs."""

    pids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, pid: int, value: float) -> None:
        self.pids.append(pid)
        self.values.append(value)

    @property
    def growth(self) -> float:
        third = max(1, len(self.values) // 3)
        return statistics.median(self.values[-third:]) - statistics.median(self.values[:third])


def roles(run: LiveRun) -> Iterator[tuple[str, int]]:
    """The processes that live as long as the attempt, and the operator."""
    holder = read_holder(run.dir)
    if holder is not None:
        yield "operator", holder.pid
    sandbox, job = run.bench.sandbox, run.state.job.id
    yield "launcher", _python(fault_processes.find_launcher(sandbox, job).pid)
    for proc in processes.of_job(sandbox.cluster, job):
        words = _words(proc.pid)
        module = next((_MODULES[word] for word in words if word in _MODULES), None)
        if module is not None and "srun" not in words[0]:
            yield f"{module} on {proc.environ.get('SLURMD_NODENAME', '?')}", proc.pid


def _python(pid: int) -> int:
    """The launcher itself, below the batch script that may wait for it."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return next((one.pid for one in family if "launch" in one.cmdline()), pid)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def temporary(run: LiveRun, tmpdir: Path) -> int:
    """Count the files that should not pile up."""
    suffixes = {path.read_text().strip() for path in run.dir.attempts.glob(f"*/{SUFFIX}")}
    beats = [
        path for path in Path("/dev/shm").glob(f"transom-{os.getuid()}-*") if any(s in path.name for s in suffixes)
    ]
    folders = [tmpdir, *beats]
    found = sum(len(names) + len(files) for folder in folders for _, names, files in os.walk(folder))
    return found + len(beats) + sum(1 for path in run.dir.path.rglob("*") if ".tmp" in path.name)


def sample(run: LiveRun, tmpdir: Path, found: dict[tuple[str, str], Series]) -> None:
    for role, pid in roles(run):
        try:
            process = psutil.Process(pid)
            figures = {
                "MB": process.memory_full_info().uss / 1e6,
                "descriptors": float(process.num_fds()),
                "threads": float(process.num_threads()),
            }
        except psutil.NoSuchProcess:
            continue  # the next sample shows its successor
        for what, value in figures.items():
            found.setdefault((role, what), Series()).add(pid, value)
    found.setdefault(("run", "temporary files"), Series()).add(0, float(temporary(run, tmpdir)))


def measure(run: LiveRun, minutes: float, every: float, tmpdir: Path) -> tuple[dict[tuple[str, str], Series], int, int]:
    """Return the series, the number of kills, and after how many of them the next one had to wait for a new step."""
    rng, found = random.Random(1), dict[tuple[str, str], Series]()
    kills = late = 0
    run.wait_step(20)
    until = time.monotonic() + 60 * minutes
    while (began := time.monotonic()) < until:
        if kills >= WARM:
            sample(run, tmpdir, found)
        seen = len(run.state.incidents)
        faults.kill_rank(run.bench.sandbox, run.state.job.id, rng.randrange(3))
        kills += 1
        wait_for(lambda: _recovered(run, seen), LONGEST, "a new step after a kill", every_s=0.5)  # noqa: B023
        took = time.monotonic() - began
        run.wait_step(run.state.progress.durable + PROGRESS, LONGEST)  # else the launcher's budget would be spent
        late += took > every
        if took > every or kills % 6 == 0:
            progress(f"{kills} kills; a new step after {took:.1f} s")
        time.sleep(max(0.0, every - (time.monotonic() - began)))
    return found, kills, late


def _recovered(run: LiveRun, incidents: int) -> bool:
    state = run.state
    return state.phase is Phase.TRAINING and state.incident is None and len(state.incidents) > incidents


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="[15]")
    parser.add_argument("--every", type=float, default=25.0, metavar="S", help="between two kills [25]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the run's files")
    args = parser.parse_args()
    tmpdir = Path(tempfile.mkdtemp(prefix="tend-", dir="/tmp"))
    os.environ["TMPDIR"] = str(tmpdir)
    try:
        with Bench(keep=args.keep) as bench:
            (bench.dir / "rules.toml").write_text(RULES)
            train = [str(GPT / "train.py"), "--steps", "1000000", "--step-delay", str(DELAY)]
            run = bench.submit("endurance", train, options=("-f", str(bench.dir / "rules.toml")))
            progress(f"a rank is killed every {args.every:g} s for {args.minutes:g} minutes")
            found, kills, late = measure(run, args.minutes, args.every, tmpdir)
            phase, incidents = run.view.phase, len(run.state.incidents)
    finally:
        shutil.rmtree(tmpdir, ignore_errors=True)
    rows = [_row(role, what, series) for (role, what), series in sorted(found.items())]
    good = all(row["good"] for row in rows) and bool(rows)
    if args.json:
        told = {"kills": kills, "late": late, "phase": phase, "incidents": incidents, "where": surroundings()}
        print(json.dumps({"schema": 1, "bench": "endurance", **told, "rows": rows}))
    else:
        print(f"{kills} kills, {incidents} incidents; the run is {phase}")
        print(f"{late} recoveries took longer than {args.every:g} s")
        print(f"{'process':<28}{'figure':<17}{'first':>8}{'last':>8}{'most':>8}{'growth':>8}{'budget':>8}")
        for row in rows:
            figures = "".join(f"{row[name]:>8.1f}" for name in ("first", "last", "most", "growth"))
            exceeded = "" if row["good"] else f"   EXCEEDED ({row['processes']} processes)"
            print(f"{row['role']:<28}{row['what']:<17}{figures}{row['budget']:>8g}{exceeded}")
    if not good:
        raise BenchError("Something grew, was replaced or did not recover")
    return 0


def _row(role: str, what: str, series: Series) -> dict[str, Any]:
    seen, budget = len(set(series.pids)), BUDGET[what]
    return {
        "role": role, "what": what, "first": series.values[0], "last": series.values[-1], "most": max(series.values),
        "growth": round(series.growth, 2), "budget": budget, "processes": seen, "values": series.values,
        "good": series.growth <= budget and seen == 1,
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(main)
