"""Who gets the nodes of a job between its end and its next start, while other jobs wait for every node?

    python bench/contended.py [--methods all] [--faults 20] [--json]

A sandbox like a site with `contended`: another user's jobs of lower priority, one node each, wait for every free node.
The job takes 3 of the 4 nodes. Then one of its nodes is at fault, and the job must start again without it. For each
method: how often another job got one of its two good nodes, and how long the job had no nodes. The node at fault is one
to be avoided, whose slurmd answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Bench, progress, run_bench, surroundings, wait_for

from transom_cli.sandbox.sites import CROWD_S, crowd
from transom_cli.slurm.port import Job, JobState, Submission
from transom_cli.slurm.requeue import RestartRequest, restart_job

LIMIT = 240.0  # seconds for one restart
TRAINING = "#!/bin/bash\nexec sleep 3600\n"


@dataclass(frozen=True)
class Trial:
    """One restart. job: before the fault; bad: the node to avoid."""

    bench: Bench
    job: Job
    bad: str
    script: Path

    @property
    def good(self) -> tuple[str, ...]:
        return tuple(node for node in self.job.nodes if node != self.bad)

    def control(self, *words: str) -> None:
        self.bench.sandbox.slurm("scontrol", *words)

    def update(self, job_id: int, *words: str) -> None:
        self.control("update", f"jobid={job_id}", *words)

    def submit(self, *options: str) -> int:
        return self.bench.slurm.submit(Submission(self.script, (*OPTIONS, *options)))

    def wait_pending(self) -> None:
        wait_for(lambda: not self.bench.slurm.job(self.job.job_id).completing, 60.0, "the end of COMPLETING", 0.05)


OPTIONS = ("--nodes=3", "--ntasks-per-node=1", "--exclusive", "--requeue", "--output=/dev/null", "--time=60")


def plain_requeue(trial: Trial) -> int:
    """`scontrol requeue`, and the exclusion while the job waits."""
    trial.control("requeue", str(trial.job.job_id))
    trial.wait_pending()
    trial.update(trial.job.job_id, f"ExcNodeList={trial.bad}")
    return trial.job.job_id


def hold_release(trial: Trial) -> int:
    """requeuehold, exclusion, release, 1.5 s, StartTime=now."""
    trial.control("requeuehold", str(trial.job.job_id))
    trial.wait_pending()
    trial.update(trial.job.job_id, f"ExcNodeList={trial.bad}")
    trial.control("release", str(trial.job.job_id))
    time.sleep(1.5)
    trial.update(trial.job.job_id, "StartTime=now")
    return trial.job.job_id


def successor_after(trial: Trial) -> int:
    """A held successor; cancel; release it once the nodes are free."""
    new = trial.submit("--hold", f"--exclude={trial.bad}")
    trial.bench.slurm.cancel(trial.job.job_id)
    trial.wait_pending()
    trial.control("release", str(new))
    return new


def dependency(trial: Trial) -> int:
    """A successor with --dependency=afterany; cancel."""
    new = trial.submit(f"--dependency=afterany:{trial.job.job_id}", f"--exclude={trial.bad}")
    trial.bench.slurm.cancel(trial.job.job_id)
    return new


def queued_before(trial: Trial) -> int:
    """A successor that waits for nodes before the job is cancelled."""
    new = trial.submit(f"--exclude={trial.bad}")
    trial.bench.slurm.cancel(trial.job.job_id)
    return new


def required_nodes(trial: Trial) -> int:
    """The same, with --nodelist of the good nodes."""
    new = trial.submit(f"--exclude={trial.bad}", f"--nodelist={','.join(trial.good)}")
    trial.bench.slurm.cancel(trial.job.job_id)
    return new


def placeholder(trial: Trial) -> int:
    """requeuehold, while a short job of our own waits for the good nodes and takes them in between."""
    short = ("--no-requeue", "--time=1", f"--nodes={len(trial.good)}", f"--nodelist={','.join(trial.good)}")
    keeper = trial.submit(*short)
    trial.control("requeuehold", str(trial.job.job_id))
    trial.wait_pending()
    trial.update(trial.job.job_id, f"ExcNodeList={trial.bad}")
    trial.control("release", str(trial.job.job_id))
    time.sleep(1.5)
    trial.update(trial.job.job_id, "StartTime=now")
    trial.bench.slurm.cancel(keeper)
    return trial.job.job_id


def transom(trial: Trial) -> int:
    """As transom restarts a job."""
    old = trial.job
    request = RestartRequest(
        old.job_id, old.restarts, (trial.bad,), (), 3, f"transom:bench:after-{old.job_id}.{old.restarts}",
        Submission(trial.script, OPTIONS),
    )  # fmt: skip
    return restart_job(trial.bench.slurm, request, sleep=time.sleep, clock=time.monotonic).job_id


METHODS: dict[str, Callable[[Trial], int]] = {
    method.__name__.replace("_", "-"): method
    for method in (plain_requeue, hold_release, successor_after, dependency, queued_before, required_nodes,
                   placeholder, transom)
}  # fmt: skip


class Crowd(threading.Thread):
    """Notes on which nodes the other user's jobs run."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(daemon=True)
        self.nodes: set[str] = set()
        self._bench, self._over = bench, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.nodes |= set(self._bench.sandbox.slurm("squeue", "-h", "-t", "R", "-n", "crowd", "-o", "%N").split())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def __enter__(self) -> Crowd:
        self.start()
        return self


def running(bench: Bench, job_id: int) -> Job:
    found: list[Job] = []

    def starts() -> bool:
        found[:] = [bench.slurm.job(job_id)]
        return found[0].state is JobState.RUNNING

    wait_for(starts, LIMIT, f"the start of job {job_id}", 0.1)
    return found[0]


def measure(bench: Bench, name: str, faults: int) -> dict[str, Any]:
    script = bench.dir / "train.sh"
    script.write_text(TRAINING)
    rows = []
    for number in range(faults):
        bench.heal()
        bench.sandbox.slurm("scancel", "--name=crowd")
        job = running(bench, bench.slurm.submit(Submission(script, OPTIONS)))
        crowd(bench.sandbox)
        time.sleep(5.0 + 1.7 * (number % 5))  # at different moments of Slurm's schedulers
        trial = Trial(bench, job, job.nodes[-1], script)
        began = time.monotonic()
        with Crowd(bench) as others:
            new = running(bench, METHODS[name](trial))
        waited = round(time.monotonic() - began, 1)
        kept = len(set(trial.good) - others.nodes)
        rows.append({"kept": kept, "of": len(trial.good), "waited": waited, "avoided": trial.bad not in new.nodes})
        progress(f"{name} {number + 1}/{faults}: {rows[-1]}")
    return {
        "method": name, "n": len(rows), "kept_all": sum(row["kept"] == row["of"] for row in rows),
        "kept_none": sum(row["kept"] == 0 for row in rows),
        "median_s": statistics.median(row["waited"] for row in rows), "max_s": max(row["waited"] for row in rows),
        "rows": rows,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="all", help=f"joined with commas: {', '.join(METHODS)} [all]")
    parser.add_argument("--faults", type=int, default=20, help="of each method [20]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    names = list(METHODS) if args.methods == "all" else args.methods.split(",")
    with Bench(nodes=4, profiles=("contended",)) as bench:
        rows = [measure(bench, name, args.faults) for name in names]
    if args.json:
        print(
            json.dumps({"schema": 1, "bench": "contended", "crowd_s": CROWD_S, "where": surroundings(), "rows": rows})
        )
    print(f"{'method':<18} {'n':<3} {'kept both':>9} {'kept none':>10} {'median':>8} {'longest':>8}")
    for row in rows:
        counts = f"{row['method']:<18} {row['n']:<3} {row['kept_all']:>9} {row['kept_none']:>10}"
        print(f"{counts} {row['median_s']:>6.1f} s {row['max_s']:>6.1f} s")
    return 0


if __name__ == "__main__":
    run_bench(main)
