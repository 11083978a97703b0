"""Kill a training with -9 at random instants of its saves, ten times over, and look at what a restore then finds.

The state at step n is n everywhere, so a torn or mixed checkpoint shows. Torch is imported once; each
trainer and each reader is a fork. Usage: ckpt_kill_driver.py DIRECTORY SEED. Exits with 0 when every restore was right.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from transom_cli.ckpt.checkpointer import Checkpointer

torch.set_num_threads(1)  # threads do not survive a fork
WIDTH = 1 << 17  # three tensors of 512 KiB


def state() -> dict:
    return {"n": -1, **{name: torch.full((WIDTH,), -1, dtype=torch.int32) for name in "abc"}}


def train(directory: Path, durable: Path) -> None:
    held = state()
    checkpointer = Checkpointer(held, directory, every=1)
    start = checkpointer.restore() or 0
    for step in range(start + 1, start + 10_000):
        held["n"] = step
        for name in "abc":
            held[name].fill_(step)
        checkpointer.save(step)
        if step % 3 == 0:
            checkpointer.wait(strict=True)
            with durable.open("a") as stream:
                stream.write(f"{step}\n")


def check(directory: Path, durable: Path) -> None:
    promised = max([0, *map(int, durable.read_text().split())]) if durable.exists() else 0
    held = state()
    found = Checkpointer(held, directory, every=1).restore() or 0
    assert found >= promised, f"step {promised} was durable, and {found} came back"
    if found:
        assert held["n"] == found
        for name in "abc":
            assert bool((held[name] == found).all()), f"{name} is not that of step {found}"
    print(found, flush=True)


def forked(act, *args) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def main() -> int:
    directory, luck = Path(sys.argv[1]), random.Random(sys.argv[2])
    durable = directory.parent / "durable"
    for restart in range(10):
        os.environ["TRANSOM_ATTEMPT"] = f"7.{restart}"
        pid = forked(train, directory, durable)
        time.sleep(luck.uniform(0.02, 0.6))
        os.kill(pid, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
            return 1
        if os.waitpid(forked(check, directory, durable), 0)[1] != 0:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
