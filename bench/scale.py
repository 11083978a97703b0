"""Measure the cost of following a run of many nodes: CPU, memory, Slurm calls, time to notice silence.

    python bench/scale.py [--nodes 8,64,512,2048] [--ranks 8] [--seconds 30] [--who operator,launcher] [--json]

For each size, a generator writes a live run directory (`scale_made.py`): each node's heartbeat table once a second by
rename, one step per second, its step breakdown every five seconds, some findings, and the log. The real operator, then
the real launcher, follows it in its own process, with Slurm in memory (a call costs nothing there; the calls are
counted). After the measured time one node becomes silent (for the launcher, no rank steps any more). The lag is the
time from its last table plus the limit until the operator has written `NodeSilent` into its journal (limit 10 s), or
until the launcher has found that no rank steps (the limit learned from the steps, about 8 s). The bench also shows how
each figure grows from the first size to the last: below 1.0 is less than linear.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from scale_followers import LIMITS, launch, operate
from scale_made import Cluster

from transom_cli.supervise.journal import fold

SETTLE = 5.0  # seconds until the follower has read all that is there
FOLLOWERS = {"operator": operate, "launcher": launch}
GIVE_UP = 40.0  # seconds for the silence to be reported


def measured(who: str, nodes: int, ranks: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="transom-scale-") as folder:
        cluster = Cluster(Path(folder), nodes, ranks, again=who == "launcher")
        ours, theirs = multiprocessing.Pipe()
        about = (cluster.run, cluster.names, ranks, theirs)
        child = multiprocessing.get_context("fork").Process(target=FOLLOWERS[who], args=about)
        child.start()
        assert child.pid is not None
        try:
            cluster.go_on(SETTLE)
            seen = psutil.Process(child.pid)
            before, began = sum(seen.cpu_times()[:2]), time.monotonic()
            cluster.go_on(seconds)
            core = (sum(seen.cpu_times()[:2]) - before) / (time.monotonic() - began)
            rss = seen.memory_info().rss
            lag = _lag(cluster, who)
            alive = time.monotonic() - began + SETTLE
            seen.send_signal(signal.SIGTERM if who == "operator" else signal.SIGALRM)
            calls = ours.recv() if ours.poll(40.0) else math.nan
        finally:
            for left in psutil.Process(child.pid).children(recursive=True) if child.is_alive() else ():
                left.kill()
            child.kill()
            child.join()
    return {"nodes": nodes, "core": core, "mb": rss / 1e6, "lag": lag, "calls_a_minute": 60 * calls / alive}


def _lag(cluster: Cluster, who: str) -> float:
    """Seconds; nan: it was not reported."""
    victim = cluster.fall_silent(all_wait=who == "launcher")
    last = cluster.last[victim]
    while time.time() < last + GIVE_UP:
        cluster.second()
        seen = by_operator(cluster, victim) if who == "operator" else by_launcher(cluster, victim)
        if seen is not None:
            return seen[0] - last - seen[1]
    return math.nan


def by_operator(cluster: Cluster, victim: str) -> tuple[float, float] | None:
    """When it wrote of the silence into its journal, by the wall clock, and the limit in seconds; None: not yet."""
    for record in _newest(cluster.run.journal):
        if record.get("type") == "NodeSilent" and record.get("node") == victim:
            unbent = fold(cluster.run.journal).last_at <= time.time() + 1.0  # nobody set the clock back
            return float(record["at"]) if unbent else math.nan, LIMITS.node_silent
    return None


def by_launcher(cluster: Cluster, victim: str) -> tuple[float, float] | None:
    """As `by_operator`; its limit is that of a step."""
    for record in _newest(cluster.attempt.launcher_journal):
        if record.get("what") == "seen" and victim in record["nodes"]:
            limit = re.search(r"limit ([0-9.]+) s", record["words"])
            return float(record["wall"]), float(limit[1]) if limit else math.nan
    return None


def _newest(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()[-50:]]


def show(who: str, rows: list[dict[str, float]]) -> None:
    print(f"{who}\n{'nodes':>6} {'of a core':>10} {'MB':>6} {'lag s':>7} {'Slurm calls/min':>16}")
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
        print(f"CPU {power['core']:.2f}, memory {power['mb']:.2f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,64,512,2048", help="[8,64,512,2048]")
    parser.add_argument("--ranks", type=int, default=8, help="of a node [8]")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, of each size [30]")
    parser.add_argument("--who", default=",".join(FOLLOWERS), help="[operator,launcher]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {}
    for who in args.who.split(","):
        found[who] = [measured(who, int(nodes), args.ranks, args.seconds) for nodes in args.nodes.split(",")]
        if not args.json:
            show(who, found[who])
    if args.json:
        print(json.dumps({**found, "ranks": args.ranks, "seconds": args.seconds}))


if __name__ == "__main__":
    main()
