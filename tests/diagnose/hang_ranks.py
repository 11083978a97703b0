"""Real ranks (gloo) that hang, each in a scenario of its own, and leave stacks and flight recorder dumps behind.

    python hang_ranks.py FOLDER SCENARIO...

torch is imported once; the ranks of all scenarios are forked from here. Each hangs for real; a helper thread of each
writes, at the same moment, `FOLDER/<scenario>/rank-<n>.stack.txt` (faulthandler) and `rank-<n>.flight/flight-0-<n>`
(torch's own dump), and for the scenario `json` torch's JSON dump instead of the pickle.
"""

from __future__ import annotations

import datetime
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
os.environ["TORCH_INCLUDE_STACK_TRACE"] = "1"
os.environ["USE_LIBUV"] = "0"

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

WORLD, ODD = 4, 2  # the rank that does otherwise
STEPS = 90  # more than the recorder holds
SETTLE = 1.5  # seconds from the meeting to the dump


def stuck_in_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def skips(group: dist.ProcessGroup | None) -> None:
    """The rank that never enters the collective waits elsewhere."""
    if dist.get_rank() == ODD:
        stuck_in_lock()
    dist.all_reduce(torch.ones(4), group=group)


def subgroups(world: dist.ProcessGroup | None) -> None:
    """Two groups of two and the world: one rank is stuck, its partner waits for it, and the others for both."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=mine)
    if dist.get_rank() == ODD:
        stuck_in_lock()
    dist.all_reduce(torch.ones(2), group=mine)
    dist.all_reduce(torch.ones(4))


def other_size(group: dist.ProcessGroup | None) -> None:
    dist.all_reduce(torch.ones(4000 if dist.get_rank() == ODD else 4))
    dist.all_reduce(torch.ones(4))


def other_type(group: dist.ProcessGroup | None) -> None:
    tensor = torch.ones(4)
    dist.broadcast(tensor, 1) if dist.get_rank() == ODD else dist.all_reduce(tensor)
    dist.barrier()
    dist.all_reduce(tensor)


def other_order(group: dist.ProcessGroup | None) -> None:
    first, second = torch.ones(8), torch.ones(16)
    for tensor in (second, first) if dist.get_rank() == ODD else (first, second):
        dist.all_reduce(tensor)
    if dist.get_rank() == ODD:
        time.sleep(60.0)
    dist.all_reduce(first)


def late(group: dist.ProcessGroup | None) -> None:
    """Nobody hangs: one rank came a second late to one collective."""
    if dist.get_rank() == ODD:
        time.sleep(1.2)
    dist.all_reduce(torch.ones(4))
    time.sleep(60.0)


SCENARIOS = {
    "skips": skips,
    "json": skips,
    "subgroups": subgroups,
    "other_size": other_size,
    "other_type": other_type,
    "other_order": other_order,
    "late": late,
}


def rank_of(scenario: str, rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD))
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=datetime.timedelta(seconds=60)
    )
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(4))
    dist.barrier()

    def leave() -> None:
        time.sleep(SETTLE + (1.0 if scenario == "late" else 0.0))
        dumps = folder / f"rank-{rank}.flight"
        dumps.mkdir()
        recorded = c10d._dump_fr_trace_json() if scenario == "json" else c10d._dump_fr_trace()
        (dumps / f"flight-0-{rank}").write_bytes(recorded)
        with (folder / f"rank-{rank}.stack.txt").open("w") as file:
            faulthandler.dump_traceback(file)
        time.sleep(0.7)  # a rank that leaves would free the others from their collective before they have dumped
        os._exit(0)

    threading.Thread(target=leave, name="leave", daemon=True).start()
    try:
        SCENARIOS[scenario](None)
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
