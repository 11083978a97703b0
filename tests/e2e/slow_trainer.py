"""A training without torch whose loss stops being a number and whose rank 1 is slow, told by phases as a trainer would.

Ranks wait for each other at every step, through files in the run directory. Rank 0 leaves empty checkpoints, in the
shape of published ones; a launch goes on from the newest, and is not slow on another node.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from transom_cli import beat

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--nan-at", type=int, default=10**9)
parser.add_argument("--slow-at", type=int, default=10**9, help="from there on rank 1 takes three times as long")
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
meeting = Path(os.environ["TRANSOM_RUN_DIR"], f"meeting-{os.environ['TRANSOM_LAUNCH']}")
meeting.mkdir(exist_ok=True)
folder = Path(os.environ["TRANSOM_CHECKPOINT_DIR"])
slow = rank == 1 and os.environ["TRANSOM_LAUNCH"] == "0"

for step in range(1 + max((int(p.name[5:]) for p in folder.glob("step-*")), default=0), args.steps + 1):
    with beat.phase("data"):
        time.sleep(0.01)
    with beat.phase("forward"):
        time.sleep(0.3 if slow and step >= args.slow_at else 0.1)
    with beat.phase("wait"):
        mine = meeting / f".{rank}.tmp"
        mine.write_text(str(step))
        mine.rename(meeting / str(rank))
        for other in range(world):
            while not (meeting / str(other)).exists() or int((meeting / str(other)).read_text()) < step:
                time.sleep(0.005)
    beat(step, loss=float("nan") if step >= args.nan_at else 2.0 + 0.1 / step, grad_norm=1.0 + 0.01 / step)
    if rank == 0 and step % 100 == 0:
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "manifest.json").write_text("{}")
