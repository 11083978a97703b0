"""One of two gloo ranks: ckpt_ranks_worker.py ddp|fsdp DIRECTORY. Prints what it found, as JSON, last."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ckpt_made import Training, flip, names_in
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from transom_cli.ckpt import NoCheckpointRestores
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save.commit import Committer
from transom_cli.errors import UsageError


def sharded(model):
    fully_shard(model[0])
    return fully_shard(model)


def main() -> None:
    kind, directory = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    spread = {"ddp": DistributedDataParallel, "fsdp": sharded}[kind]
    found: dict[str, object] = {}

    def resumed(name: str, at: int, training: Training, before: str) -> None:
        """Save at step `at`, go on, and resume in another training: before and after must be the same bits."""
        checkpointer = Checkpointer(training.state, directory / name, every=1)
        assert checkpointer.restore() is None
        assert checkpointer.save(at)
        for _ in range(3):  # collectives of DDP and FSDP2 beside those of the save
            training.step()
        checkpointer.close(strict=True)
        again = Training(2, rank, spread)
        again.step()
        checkpointer = Checkpointer(again.state, directory / name, every=1)
        assert checkpointer.restore() == at
        found[f"{name} restored"] = again.digest() == before
        for _ in range(3):
            again.step()
        found[f"{name} resumed"] = again.digest() == training.digest()
        checkpointer.close()

    try:
        Checkpointer({}, directory, every=10 + rank)
    except UsageError as error:
        found["refused"] = error.why
    training = Training(1, rank, spread)
    resumed("unstepped", 0, training, training.digest())
    resumed("stepped", 3, training, training.digest())

    checkpointer = Checkpointer(training.state, directory / "damage", every=1)
    for step in (1, 2, 3):
        training.step()
        checkpointer.save(step)
        checkpointer.wait()  # a write that has not begun is dropped for a newer one
    checkpointer.close(strict=True)
    found["files"] = sorted(p.name for p in (directory / "damage" / "step-3").iterdir())
    if rank == 0:
        flip(directory / "damage" / "step-3" / "__1_0.distcp", 1000)
    dist.barrier()
    checkpointer = Checkpointer(training.state, directory / "damage", every=1)
    found["fell back to"] = checkpointer.restore()

    # One rank cannot write its part: all learn of it, and the next save works.
    hold = Committer._hold
    if rank == 1:
        Committer._hold = lambda self, step, snapshot, share: hold(self, step, _Unreadable(snapshot), share)
    checkpointer.save(4)
    checkpointer.wait()
    found["failed"] = checkpointer.last_error.why
    Committer._hold = hold
    training.state["bad"] = (lambda: 0) if rank == 1 else 0
    checkpointer.save(5)
    checkpointer.wait()
    found["uncopied"] = checkpointer.last_error.why
    training.state["bad"] = 0
    checkpointer.save(6)
    checkpointer.close(strict=True)
    found["then"] = names_in(directory / "damage")

    dist.barrier()
    if rank == 0:
        for path in (directory / "damage").glob("step-*/manifest.json"):
            path.unlink()
    dist.barrier()
    try:
        Checkpointer(training.state, directory / "damage", every=1).restore()
    except NoCheckpointRestores as error:
        found["exit"] = error.exit_code
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


class _Unreadable:
    """A snapshot whose data is gone."""

    def __init__(self, snapshot) -> None:
        self.layout, self.objects = snapshot.layout, snapshot.objects

    @property
    def buffer(self):
        raise OSError(5, "Input/output error")


if __name__ == "__main__":
    main()
