"""Count the operations on the shared file system of the operator and the launcher that follow a run.

    python bench/follow_files.py [--nodes 8,64,512,2048] [--ranks 8] [--seconds 15] [--who operator,launcher] [--json]

Followers and live run directory are those of bench/scale.py. A follower runs under strace, which slows it somewhat. The
bench counts each system call that names a path in the run directory or a file open in it; and separately, those on one
node's heartbeat table and those on files that belong to no node, which must not grow with the number of nodes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from agent_files import counted
from scale import FOLLOWERS, SETTLE
from scale_made import Cluster


def measured(who: str, nodes: int, ranks: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tfollow-") as folder:
        cluster = Cluster(Path(folder) / "runs", nodes, ranks, again=who == "launcher")
        trace = Path(folder) / "trace"
        _, theirs = multiprocessing.Pipe()
        about = (cluster.run, cluster.names, ranks, theirs)
        child = multiprocessing.get_context("fork").Process(target=FOLLOWERS[who], args=about)
        child.start()
        try:
            cluster.go_on(SETTLE)
            words = ["strace", "-f", "-y", "-s", "200", "-e", "trace=%file,%desc", "-o", str(trace), "-p"]
            began = time.monotonic()
            tracer = subprocess.Popen([*words, str(child.pid)], stderr=subprocess.DEVNULL)
            cluster.go_on(seconds)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(60)
            took = time.monotonic() - began
        finally:
            for left in psutil.Process(child.pid).children(recursive=True) if child.is_alive() else ():
                left.kill()
            child.kill()
            child.join()
        lines = trace.read_text(errors="replace").splitlines()
    every = sum(counted(lines, str(cluster.run.path))[0].values())
    of_nodes = sum(counted(lines, f"{cluster.attempt.nodes}/")[0].values())
    tables = sum(f"{cluster.names[0]}.beats" in line for line in lines)
    return {
        "nodes": nodes,
        "a_second": every / took,
        "of_a_table": tables / took,
        "of_no_node": (every - of_nodes) / took,
    }


def show(who: str, rows: list[dict[str, float]]) -> None:
    print(f"{who}: operations a second on the run directory")
    print(" nodes    all  on one node's table  on no node's file")
    for row in rows:
        print(f"{row['nodes']:>6} {row['a_second']:>6.0f} {row['of_a_table']:>20.1f} {row['of_no_node']:>18.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,64,512,2048")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--who", default=",".join(FOLLOWERS), help="[operator,launcher]")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("error: strace is not here\n\nhint: apt-get install strace")
    found = {}
    for who in asked.who.split(","):
        found[who] = [measured(who, int(word), asked.ranks, asked.seconds) for word in asked.nodes.split(",")]
        if not asked.json:
            show(who, found[who])
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
