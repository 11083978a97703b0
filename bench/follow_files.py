"""What following a run asks of the shared file system: the operator's operations a second on the run directory.

    python bench/follow_files.py [--nodes 8,64,512] [--ranks 8] [--seconds 20] [--json]

The operator and the live run directory of bench/scale.py, the operator under strace, which slows it: it looks less
often then. Counted is each system call that names a path in the run directory or a file open in it. A node costs three
operations a look (open, read, close), the run itself some more that do not grow with it.
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

from agent_files import counted
from scale import SETTLE, Cluster, go_on, operate


def measured(nodes: int, ranks: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tfollow-") as folder:
        cluster = Cluster(Path(folder) / "runs", nodes, ranks)
        trace = Path(folder) / "trace"
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=operate, args=(cluster.run, cluster.names, theirs))
        child.start()
        try:
            go_on(cluster, SETTLE)
            words = ["strace", "-f", "-y", "-s", "200", "-e", "trace=%file,%desc", "-o", str(trace), "-p"]
            began = time.monotonic()
            tracer = subprocess.Popen([*words, str(child.pid)], stderr=subprocess.DEVNULL)
            go_on(cluster, seconds)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(60)
            took = time.monotonic() - began
        finally:
            child.kill()
            child.join()
            ours.close()
        calls, logs = counted(trace.read_text(errors="replace").splitlines(), str(cluster.run.path))
        tables = sum(f"{name}.beats" in line for line in trace.open(errors="replace") for name in cluster.names[:1])
    every = sum(calls.values()) + logs
    return {"nodes": nodes, "a_second": every / took, "of_a_table": tables / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,64,512")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("error: strace is not here\n\nhint: apt-get install strace")
    rows = [measured(int(word), asked.ranks, asked.seconds) for word in asked.nodes.split(",")]
    if asked.json:
        print(json.dumps(rows))
        return
    print("nodes  operations a second  of these on one node's table")
    for row in rows:
        print(f"{row['nodes']:>5.0f}  {row['a_second']:>19.0f}  {row['of_a_table']:>28.1f}")


if __name__ == "__main__":
    main()
