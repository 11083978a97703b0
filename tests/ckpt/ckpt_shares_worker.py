"""One of two gloo ranks that hold the same. Usage: ckpt_shares_worker.py DIRECTORY. Prints what it found, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save import buffer, staging

WIDE = 1 << 19  # numbers in each of eight tensors: 16 MiB


class Loader:
    """Its state has tensors that come and go, and another shape on each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.buffers: dict[str, torch.Tensor] = {}

    def state_dict(self):
        return dict(self.buffers)

    def load_state_dict(self, state) -> None:
        self.buffers = state


def fill(state: dict, loader: Loader, step: int) -> None:
    for name in state["held"]:
        state["held"][name].fill_(step + int(name))
    loader.buffers = {f"b{step % 3}": torch.full((3 + step * (1 + loader.rank),), float(step + 10 * loader.rank))}


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    taken: list[int] = []
    take = staging.Stager.take

    def measured(self, *state):
        snapshot = take(self, *state)
        taken.append(snapshot.size)
        return snapshot

    staging.Stager.take = measured
    loader = Loader(rank)
    state = {"held": {str(k): torch.zeros(WIDE) for k in range(8)}, "loader": loader}
    checkpointer = Checkpointer(state, directory, every=1, keep=20)
    found: dict[str, object] = {"errors": []}

    def save(step: int) -> None:
        checkpointer.save(step)
        checkpointer.wait()
        found["errors"].append(checkpointer.last_error.why if checkpointer.last_error else "")

    for step in range(1, 5):
        fill(state, loader, step)
        save(step)
    state["more"] = torch.full((WIDE,), 5.0)  # on all ranks at once, as an optimizer's state
    fill(state, loader, 5)
    save(5)
    save(6)
    if rank == 1:  # no memory for a state that has grown
        buffer.free_memory, free = (lambda: 0), buffer.free_memory
    state["more2"] = torch.full((16 * WIDE,), 7.0)
    save(7)
    if rank == 1:
        buffer.free_memory = free
    fill(state, loader, 8)
    save(8)
    for step, loser in ((9, 1), (11, 0)):  # a state that the ranks do not hold alike: one of them was to write this
        lost = state.pop("more2") if rank == loser else None
        save(step)
        if lost is not None:
            state["more2"] = lost
        save(step + 1)
    found["taken"] = taken
    found["sizes"] = {p.parent.name: p.stat().st_size for p in directory.glob(f"step-*/__{rank}_0.distcp")}
    checkpointer.close()

    again = Loader(rank)
    fresh = {"held": {str(k): torch.zeros(WIDE) for k in range(8)}, "loader": again, "more": torch.zeros(WIDE)}
    fresh["more2"] = torch.zeros(16 * WIDE)
    checkpointer = Checkpointer(fresh, directory, every=1)
    found["restored"] = checkpointer.restore()
    checkpointer.close()
    found["same"] = [
        all(bool((fresh["held"][str(k)] == 8 + k).all()) for k in range(8)),
        bool((fresh["more"] == 5.0).all() and (fresh["more2"] == 7.0).all()),
        list(again.buffers) == list(loader.buffers) and again.buffers["b2"].equal(loader.buffers["b2"]),
    ]
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
