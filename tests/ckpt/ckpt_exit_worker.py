"""A rank whose restore finds nothing. Prints how many threads gloo has in use, and at shutdown."""
# ruff: noqa: E402 (the first atexit handler is the last one to run)

import atexit


@atexit.register
def tell() -> None:
    print(used, gloo_threads(), flush=True)


import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from transom_cli.ckpt import NoCheckpointRestores
from transom_cli.ckpt.checkpointer import Checkpointer


def gloo_threads() -> int:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append(task.joinpath("comm").read_text())
    return sum("gloo" in name for name in names)


dist.init_process_group("gloo")
checkpointer = Checkpointer({"model": torch.zeros(3)}, sys.argv[1], every=1)
checkpointer.restore()
used = gloo_threads()
raise NoCheckpointRestores("nothing restores")
