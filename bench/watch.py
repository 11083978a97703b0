"""Measure the cost of `transom status --watch` on a run of many nodes: share of a core, bytes to the terminal, memory.

    python bench/watch.py [--nodes 64,2048] [--seconds 20] [--json]

The run directory is generated as by bench/status.py. The screen runs on a pseudo terminal of 120 x 40, refreshed every
second.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil
from status import make

SETTLE = 6.0  # seconds until it stands


def measured(root: Path, seconds: float) -> dict[str, float]:
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    argv = [sys.executable, "-m", "transom_cli", "status", "--watch", "--root", str(root)]
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    try:
        drained(mine, SETTLE)
        seen = psutil.Process(process.pid)
        before, began = sum(seen.cpu_times()[:2]), time.monotonic()
        sent = drained(mine, seconds)
        took = time.monotonic() - began
        used = sum(seen.cpu_times()[:2]) - before
        rss = seen.memory_info().rss
        os.write(mine, b"q")
        drained(mine, 1.0)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
        os.close(theirs)
    return {"core": used / took, "bytes_s": sent / took, "rss_mb": rss / 1e6}


def drained(terminal: int, seconds: float) -> int:
    """Bytes that came within that time."""
    count, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            count += len(os.read(terminal, 65536))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="64,2048", help="[64,2048]")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for nodes in map(int, asked.nodes.split(",")):
        with tempfile.TemporaryDirectory(prefix="transom-watch-") as folder:
            make(Path(folder), nodes, 8)
            rows.append({"nodes": nodes, **measured(Path(folder), asked.seconds)})
    if asked.json:
        print(json.dumps({"rows": rows, "seconds": asked.seconds}))
        return
    print(f"{'nodes':>6} {'of a core':>10} {'bytes/s':>8} {'MB':>5}")
    for row in rows:
        print(f"{row['nodes']:>6} {row['core']:>10.2%} {row['bytes_s']:>8.0f} {row['rss_mb']:>5.0f}")


if __name__ == "__main__":
    main()
