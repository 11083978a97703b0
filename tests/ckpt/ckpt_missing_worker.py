"""One of three gloo ranks, of which rank 1 does not call save(). Usage: ckpt_missing_worker.py first|later DIRECTORY.

Prints as JSON, last: what was raised, and after how many seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from transom_cli.ckpt import ranks
from transom_cli.ckpt.checkpointer import Checkpointer

RANK = int(os.environ["RANK"])


def main() -> None:
    ranks.MARK = 0.5
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    checkpointer = Checkpointer({"held": torch.ones(3)}, Path(sys.argv[2]), every=1, patience=4)
    if sys.argv[1] == "later":
        checkpointer.save(1)
        checkpointer.wait(strict=True)
    found = {"raised": "", "seconds": 0.0}
    begun = time.monotonic()
    if RANK != 1:
        try:
            for step in (2, 3):
                checkpointer.save(step)
        except Exception as error:
            found = {"raised": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begun}
    print(json.dumps(found), flush=True)
    store.set(f"done {RANK}", "1")
    store.wait([f"done {rank}" for rank in range(3)])
    os._exit(0) if sys.argv[1] == "later" else None


if __name__ == "__main__":
    main()
