"""Measure what many runs cost a site: calls to Slurm, file calls, memory, journals, logs; with budgets.

    python bench/neighbour.py [--only slurm,process,files,journal,logs]

Each part is a bench of its own, which can be run alone with more options:

    slurm      neighbour_slurm.py     600 runs of 100 users, pending, held, training, recovering: calls to slurmctld
    process    neighbour_process.py   one operator process with 1 and 100 runs in each of these states: memory, CPU,
                                      calls to Slurm, file calls (600 runs: neighbour_process.py --runs 600)
    files      neighbour_files.py     heartbeats of 1,024 nodes: calls to the shared file system, before and now
    journal    neighbour_journal.py   a month's journal and 2,000 run directories: seconds, memory, file calls
    logs       log_storm.py           one node's eight logs full of warnings, and the answers of 1,024 nodes

The exit code is 1 if a part exceeds its budget or fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = {
    "slurm": "neighbour_slurm.py",
    "process": "neighbour_process.py",
    "files": "neighbour_files.py",
    "journal": "neighbour_journal.py",
    "logs": "log_storm.py",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas [all]")
    wanted = parser.parse_args().only.split(",")
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = []
    for part in wanted:
        print(f"\n=== {part}", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).with_name(PARTS[part]))], check=False)
        if done.returncode:
            failed.append(part)
    if failed:
        print(f"\nover budget, or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
