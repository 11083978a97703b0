"""A training that saves often. Usage: ckpt_flat_worker.py DIRECTORY FIRST LAST PERSIST. Prints two sizes, as JSON.

A process of its own: in one that has run other tests, memory comes and goes for other reasons.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import torch
from ckpt_memory_holders import abandon, daemon_path, end_holder, holder_pid, memory_of

from transom_cli.ckpt.checkpointer import Checkpointer

THP_DISABLE = 41  # PR_SET_THP_DISABLE of prctl(2): huge pages count memory that nobody has touched


def entries(folder: Path) -> int:
    return len(list(folder.iterdir()))


def size_of(directory: Path) -> dict[str, list[int]]:
    """Of the trainer and the daemon: bytes, descriptors, threads; files in the directory and beside the socket."""
    pids = os.getpid(), holder_pid(directory)
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "resident": [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids],
        "descriptors": [entries(Path(f"/proc/{pid}/fd")) for pid in pids],
        "threads": [entries(Path(f"/proc/{pid}/task")) for pid in pids],
        "memories": [len(memory_of(pids[1]))],
        "files": [len(list(directory.rglob("*"))), entries(Path(daemon_path(directory)).parent)],
    }


def main() -> None:
    directory, (first, last, persist) = Path(sys.argv[1]), map(int, sys.argv[2:])
    ctypes.CDLL(None).prctl(THP_DISABLE, 1, 0, 0, 0)
    held = {"weights": torch.zeros(1000)}
    trainer = Checkpointer(held, directory, every=1, persist=persist)
    trainer.restore()
    sizes = []
    for step in range(1, last + 1):
        held["weights"].fill_(step)
        trainer.save(step)
        if step in (first, last):
            trainer.wait(strict=True)
            sizes.append(size_of(directory))
    abandon(trainer)
    end_holder(directory)
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
