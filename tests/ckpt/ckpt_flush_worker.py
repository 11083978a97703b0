"""One of several gloo ranks that trains until it is told otherwise. Usage: ckpt_flush_worker.py DIRECTORY.

Each rank makes its own pace, so that ranks are at different steps unless they wait for each other, and trains a model
of its own. Lines on standard
input: `go N` trains N steps and answers with the last one and whether a save was started; `close` ends in good order.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ckpt_made import Training

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save import final_checkpoint

EVERY = 100


def main() -> None:
    final_checkpoint.REQUEST_WAIT, final_checkpoint.LONGEST = 600.0, 600.0
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    training = Training(1, rank)
    own = ["model", "optim", "mean"]
    checkpointer = Checkpointer(training.state, Path(sys.argv[1]), every=EVERY, per_rank=own)
    step = checkpointer.restore() or 0
    print("up", step, flush=True)
    for line in sys.stdin:
        if line == "close\n":
            break
        started = []
        for _ in range(int(line.split()[1])):
            step += 1
            training.step()
            if checkpointer.save(step):
                started.append(step)
        print(step, *started, flush=True)
    checkpointer.close()
    print("closed", checkpointer.last_error.why if checkpointer.last_error else "", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
