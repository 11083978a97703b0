"""One of several gloo ranks under every="auto", each at its own pace. Usage: ckpt_auto_worker.py DIRECTORY SAVES SEED.

They never wait for each other but through the Checkpointer, and end after so many scheduled saves. Rank 1's copies take
long, and rank 0 saves once out of turn. Prints, as JSON: the scheduled steps, and the intervals that held at each.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save.staging import Stager
from transom_cli.ckpt.schedule import cadence, failure_rate
from transom_cli.errors import UsageError

ALONE = 15  # steps after which rank 0 saves by itself: the ranks have not looked yet at what the first save settled


def main() -> None:
    directory, saves, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    pace = random.Random(seed + rank)
    dist.init_process_group("gloo")
    failure_rate.LEAST = failure_rate.RANK_DAYS = 1e-6  # failures without end: the overhead decides,
    cadence.ROOM = 1e-6  # however slowly this machine writes
    take, stall = Stager.take, 0.2 if rank == 1 else 0.0  # long beside a step on a busy machine

    def slow_take(self, *state):
        time.sleep(stall)
        return take(self, *state)

    Stager.take = slow_take
    refused = ""
    try:
        Checkpointer({}, directory, every="auto" if rank else 10)
    except UsageError as error:
        refused = f"{error.what}: {error.why}"
    checkpointer = Checkpointer({"w": torch.zeros(8)}, directory, every="auto", overhead=0.5, persist=1, keep=10**6)
    saved, held = [], []
    step = checkpointer.restore() or 0
    began = step
    while len(saved) < saves:
        step += 1
        if len(saved) == saves // 2:
            stall = stall and 0.6  # another reason to change
        time.sleep(pace.uniform(0.0005, 0.002))
        if checkpointer.step(step):
            saved.append(step)
            held.append(checkpointer.every)
        if rank == 0 and step == began + ALONE:
            assert checkpointer.save(step, force=True)
    checkpointer.close()
    print(json.dumps({"saved": saved, "held": held, "refused": refused}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
