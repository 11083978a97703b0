"""One of two gloo ranks, of which one fails in some saves. Usage: ckpt_trouble_worker.py DIRECTORY. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from transom_cli.ckpt import files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.proof_save import Ledger
from transom_cli.ckpt.save import staging, streamed

PLACES: dict[str, tuple[Any, str]] = {  # where a save fails
    "copy": (staging.Stager, "_copy"),
    "checksum": (files, "digest_segments"),  # while the digests are computed
    "digests": (Ledger, "_sums"),
    "streamed digests": (Ledger, "_sums"),
    "streamed bytes": (streamed, "data_file"),
}


def fail(*_: object) -> Any:
    raise RuntimeError("as if there were no more memory")


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = {"same": torch.zeros(1000), "own": torch.zeros(100)}
    checkpointer = Checkpointer(state, directory, every=1, keep=20, per_rank=["own"])
    found: dict[str, Any] = {"errors": {}, "after": {}}
    step = 0

    def save() -> str:
        nonlocal step
        step += 1
        state["same"].fill_(step)
        state["own"].fill_(step + rank)
        checkpointer._saver._streamer._not_before = 0
        checkpointer.save(step)
        checkpointer.wait()
        return checkpointer.last_error.why if checkpointer.last_error else ""

    found["first"] = save()
    for kind, (owner, name) in PLACES.items():
        real, take = getattr(owner, name), staging.Stager.take
        if kind.startswith("streamed") and rank == 1:
            staging.Stager.take = no_memory  # type: ignore[method-assign]
            found[f"{kind} without a fault"] = save()
        elif kind.startswith("streamed"):
            save()
        if rank == 1:
            setattr(owner, name, fail)
        found["errors"][kind] = save()
        setattr(owner, name, real)
        staging.Stager.take = take  # type: ignore[method-assign]
        found["after"][kind] = save()
    checkpointer.close()
    fresh = {"same": torch.zeros(1000), "own": torch.zeros(100)}
    checkpointer = Checkpointer(fresh, directory, every=1, per_rank=["own"])
    found["restored"] = checkpointer.restore() == step
    found["same"] = all(torch.equal(fresh[name], state[name]) for name in state)
    for one in range(1, step):
        path = directory / f"step-{one}"
        found.setdefault("steps", []).append(path.exists())
    checkpointer.close()
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def no_memory(*_: object) -> Any:
    raise MemoryError("a snapshot takes more than there is")


if __name__ == "__main__":
    main()
