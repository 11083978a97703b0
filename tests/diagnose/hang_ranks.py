"""Real ranks (gloo) that hang, each in a scenario of its own, and leave stacks and flight recorder dumps behind.

    python hang_ranks.py FOLDER SCENARIO...

torch is imported once; the ranks of all scenarios are forked from here. Each hangs for real; a helper thread of each
writes, at the same moment, `FOLDER/<scenario>/rank-<n>.stack.txt` (faulthandler) and `rank-<n>.flight/flight-0-<n>`
(torch's own dump; of an odd rank in JSON, which has no frames).
"""

from __future__ import annotations

import datetime
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "16"
os.environ["TORCH_INCLUDE_STACK_TRACE"] = "1"
os.environ["USE_LIBUV"] = "0"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

WORLD, ODD = 4, 2  # the rank that does otherwise
STEPS = 20  # more than the recorder holds
SETTLE = 0.5  # seconds from "what I do next does not end" to the dump


def stuck_in_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    ready()
    lock.acquire()


def ready() -> None:
    """What this rank does next does not end."""
    Path(os.environ["READY"]).touch()


def skips() -> None:
    """The rank that never enters the collective waits elsewhere."""
    if dist.get_rank() == ODD:
        stuck_in_lock()
    ready()
    dist.all_reduce(torch.ones(4))


def subgroups() -> None:
    """Two groups of two and the world: one rank is stuck, its partner waits for it, and the others for both."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=mine)
    if dist.get_rank() == ODD:
        stuck_in_lock()
    if dist.get_rank() // 2 == ODD // 2:
        ready()
    dist.all_reduce(torch.ones(2), group=mine)
    ready()
    dist.all_reduce(torch.ones(4))


def other_type() -> None:
    tensor = torch.ones(4)
    ready()
    dist.broadcast(tensor, 1) if dist.get_rank() == ODD else dist.all_reduce(tensor)
    dist.barrier()
    dist.all_reduce(tensor)


SCENARIOS = {
    "skips": skips,
    "subgroups": subgroups,
    "other_type": other_type,
}


def wait_for(folder: Path, names: str) -> None:
    """All ranks' files of that name."""
    until = time.monotonic() + 60.0
    while len(list(folder.glob(names))) < WORLD:
        if time.monotonic() > until:
            os._exit(3)
        time.sleep(0.02)


def rank_of(scenario: str, rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), READY=str(folder / f"ready-{rank}"))
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=datetime.timedelta(seconds=60)
    )
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(4))
    dist.barrier()

    def leave() -> None:
        wait_for(folder, "ready-*")
        time.sleep(SETTLE)
        dumps = folder / f"rank-{rank}.flight"
        dumps.mkdir()
        recorded = c10d._dump_fr_trace_json() if rank % 2 else c10d._dump_fr_trace()
        (dumps / f"flight-0-{rank}").write_bytes(recorded)
        with (folder / f"rank-{rank}.stack.txt").open("w") as file:
            faulthandler.dump_traceback(file)
        (folder / f"dumped-{rank}").touch()
        wait_for(folder, "dumped-*")  # a rank that leaves frees the others from their collective
        os._exit(0)

    threading.Thread(target=leave, name="leave", daemon=True).start()
    try:
        SCENARIOS[scenario]()
        time.sleep(60.0)
    except BaseException as error:
        print(scenario, rank, repr(error), file=sys.stderr, flush=True)
        time.sleep(60.0)


def main() -> None:
    torch.set_num_threads(1)
    children = []
    for scenario in sys.argv[2:]:
        folder = Path(sys.argv[1]) / scenario
        folder.mkdir(parents=True)
        for rank in range(WORLD):
            child = os.fork()
            if not child:
                try:
                    rank_of(scenario, rank, folder)
                finally:
                    os._exit(1)
            children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
