"""A training without torch, for tests of the supervisor: steps, beats, a durable step counter, and endings on request.

Ranks wait for each other at every step, through files, as a collective would make them: when one is gone, the others
hang. Rank 0 leaves empty checkpoints in the checkpoint folder, in the shape of published ones.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from transom_cli import beat

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--delay", type=float, default=0.1)
parser.add_argument(
    "--end", default="", help="CODE, a signal's name, error, spin or read, at --at of the run's first launch"
)
parser.add_argument("--always", action="store_true", help="in every launch")
parser.add_argument("--launch", type=int, default=0, help="not in the first launch but in this one")
parser.add_argument("--at", type=int, default=10**9)
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--quiet-words", default="")
parser.add_argument("--pause", type=float, default=0.0, help="seconds without a step after each --pause-every steps")
parser.add_argument("--pause-every", type=int, default=10**9)
args = parser.parse_args()

rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
restart, launch = (int(os.environ.get(name) or 0) for name in ("SLURM_RESTART_COUNT", "TRANSOM_LAUNCH"))
first = args.always or (restart, launch) == (0, args.launch)
world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
folder = Path(os.environ["TRANSOM_CHECKPOINT_DIR"])
start = f"{os.environ['SLURM_JOB_ID']}.{restart}.{launch}"
meeting = Path(os.environ["TRANSOM_RUN_DIR"], "meeting", start)
meeting.mkdir(parents=True, exist_ok=True)


def meet(step: int) -> None:
    """Return when every rank has come to this step."""
    mine = meeting / f".{rank}.tmp"
    mine.write_text(str(step))
    mine.rename(meeting / str(rank))
    for other in range(world):
        while not (meeting / str(other)).exists() or int((meeting / str(other)).read_text()) < step:
            time.sleep(0.01)


done = max((int(p.name[5:]) for p in folder.glob("step-*")), default=0)
print(f"rank {rank} goes on from step {done}", flush=True)
for step in range(done + 1, args.steps + 1):
    time.sleep(args.delay)
    if rank == args.rank and first and step == args.at:
        if args.end.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, args.end))
        elif args.end == "spin":
            while True:
                pass
        elif args.end == "read":
            os.read(os.pipe()[0], 1)  # nobody writes
        elif args.end == "error":
            raise ValueError("a wrong shape")
        elif args.end:
            print(args.quiet_words, file=sys.stderr)
            sys.exit(int(args.end))
    meet(step)
    beat(step, loss=1.0 / step)
    if step % args.pause_every == 0:
        time.sleep(args.pause)
    if rank == 0 and step % 5 == 0:
        at = folder / f"step-{step}"
        at.mkdir(parents=True, exist_ok=True)
        (at / "manifest.json").write_text(json.dumps({"step": step}))
