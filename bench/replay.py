"""Replay incidents that the sandbox has measured in the simulator: does it predict how long a recovery takes?

    python bench/replay.py [FILE]

FILE is the output of `bench/recovery.py --json`; by default that of two campaigns, kept in bench/data/: the first half
of each comes first. Of each incident, the
simulator is given the fault, its node, the step time, how long the trainer says that its start-up took, and how long
the preflight took. Delays of Slurm and of transom's processes are calibrated on the first half of the runs, relative to
the time that importing torch takes: the machine may be busy. The other half is predicted. All waits, limits and
decisions are those of transom's own deciders.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from transom_cli.config.load import load
from transom_cli.simulate.cluster import BEGIN, Cluster
from transom_cli.simulate.model import CRASH, HANG, LOST, Costs, Fault, Hazard, Scenario
from transom_cli.simulate.setup import with_settings

KEPT = Path(__file__).parent / "data" / "recoveries.json"
NODES, POOL = 3, 4
AT = 300.0  # seconds after the start of the run
SETTLE = 0.3  # seconds of the launcher's own, within `decide`
FAULTS = {
    "rank-kill": Fault("rank-kill", 1, CRASH),
    "node-kill": Fault("node-kill", 1, LOST),
    "rank-stop": Fault("rank-stop", 1, HANG, stopped=True),
}
CASES = ("rank-kill", "node-kill", "node-kill-spare", "hang")  # without standby ranks
Row = dict[str, Any]


@dataclass(frozen=True)
class Delays:
    """Calibrated. seen, end, evidence and slurm: relative to the import of torch; the others in seconds."""

    seen: float
    end: float
    evidence: float
    slurm: float
    requeue: float
    srun: float


def calibrate(rows: Iterable[Row]) -> Delays:
    alive = [r for r in rows if not (r["kind"] == "node-kill" and r["batch_host"])]
    exits = [r for r in alive if r["kind"] != "rank-stop"]
    again = [r for r in alive if r["requeue"]]
    end = median((r["decide"] - SETTLE) / imports(r) for r in exits)
    return Delays(
        seen=median(r["detect"] / imports(r) for r in exits),
        end=end,
        evidence=median(r["decide"] / imports(r) - end for r in alive if r["kind"] == "rank-stop"),
        slurm=median((r["start"] - r["preflight"]) / imports(r) for r in again),
        requeue=median(r["requeue"] for r in again),
        srun=median(r["resume"] - sum(r["start_up"].values()) for r in alive),
    )


def imports(row: Row) -> float:
    return float(row["start_up"]["import"])


def scenario(row: Row, known: Delays) -> Scenario:
    pace = imports(row)
    costs = Costs(
        noise=0.0, step=row["median_step"], save_every=10, stall=0.0, copied=0.5, persist_every=1, persist=0.1,
        slows=0.0, start=known.srun + sum(row["start_up"].values()), read_memory=0.0, read_disk=0.0,
        launcher=known.slurm * pace, preflight=row["preflight"], end=known.end * pace, evidence=known.evidence * pace,
        logs=0.0, probe=0.1, isolate=0.05, requeue=known.requeue, reset=known.seen * pace, look=0.3,
    )  # fmt: skip
    spares = int(row["case"] == "node-kill-spare")
    base = Scenario(NODES, days=0.05, spares=spares, pool=POOL, hazard=Hazard(per_node_day=0.0), costs=costs)
    return with_settings(base, load(site=None, user=Path("/nonexistent")))


def predicted(row: Row, known: Delays) -> float:
    """Return the seconds from the fault to the first new step, in the simulator."""
    at = BEGIN + AT

    def plan(cluster: Cluster) -> None:
        node = cluster.fleet.nodes[cluster.scenario.names[0 if row["batch_host"] else 1]]
        cluster.timeline.at(at, cluster.fleet.hit, node, FAULTS[row["kind"]])

    cluster = Cluster(scenario(row, known), 1, plan)
    cluster.run()
    ended = [i.ended_at for i in cluster.state.incidents if i.result == "recovered" and i.ended_at is not None]
    return ended[-1] - at if ended else float("nan")


def replayed(rows: list[Row]) -> dict[str, list[tuple[float, float]]]:
    """(measured, predicted) of the second half of the runs, by class."""
    half = (1 + max(row["run"] for row in rows)) // 2
    known = calibrate([row for row in rows if row["run"] < half])
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["run"] >= half:
            found.setdefault(row["case"], []).append((row["total"], predicted(row, known)))
    return found


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the medians of both, and the relative error of the predicted one."""
    measured, ours = median(m for m, _ in pairs), median(p for _, p in pairs)
    return measured, ours, ours / measured - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=KEPT)
    rows = [
        row
        for row in json.loads(parser.parse_args().file.read_text())["runs"]
        if "error" not in row and row["case"] in CASES
    ]
    found = replayed(rows)
    print(f"{'class':17}{'n':>3}{'measured':>10}{'predicted':>11}{'error':>8}   each run")
    for name, pairs in found.items():
        measured, ours, error = medians(pairs)
        each = ", ".join(f"{p / m - 1:+.0%}" for m, p in pairs)
        print(f"{name:17}{len(pairs):3}{measured:9.1f}s{ours:10.1f}s{error:+8.1%}   {each}")
    worst = max(abs(medians(pairs)[2]) for pairs in found.values())
    print(f"largest error of a median: {worst:.1%}")
    return int(not worst <= 0.10)


if __name__ == "__main__":
    sys.exit(main())
