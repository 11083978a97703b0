"""One rank of a training over several "nodes" of this machine, each with a snapshot daemon of its own.

Usage: ckpt_memory_nodes_worker.py DIRECTORY[,DIRECTORY..] PROTECT STEPS [COPIES]. The state at step n is n everywhere,
and a shard has its own numbers. In each of the directories it is saved by a Checkpointer of its own. Lines on
standard output: `restored N`, `step N` for each finished one, `settled` when the last one counts. On standard input:
`go N` for N more steps; an empty line ends it in order.

Environment: TOTAL elements of the sharded tensor (default: as many for each rank), which allows other numbers of
ranks; HOLD: wait for a line after the restore; ROOM: bytes that snapshots may take on this node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from transom_cli.ckpt import files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.restore import reader, stream
from transom_cli.ckpt.save import buffer
from transom_cli.ckpt.snapshot.client import agents_path

WIDTH = 3 << 16


def read_slowly(pause: float) -> None:
    """With so many seconds after each piece of a restore."""
    add = reader.RestoreProgress.add

    def slowly(self, count):
        add(self, count)
        time.sleep(pause)

    files._PIECE = stream._PIECE = 64 << 10
    reader.RestoreProgress.add = slowly


def limit_memory(most: int) -> None:
    """Let the snapshots of this node take `most` bytes: what its daemon keeps counts."""

    def taken() -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(agents_path(os.environ["TRANSOM_BEAT_DIR"]))
            size = struct.calcsize("3i")
            pid = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        found = {}
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith("/memfd:transom-snapshot"):
                    found[link.stat().st_ino] = link.stat().st_size
        return sum(found.values())

    buffer.free_memory = lambda: most - taken() + buffer.SPARE


def main() -> None:
    directories, protect, steps = [Path(one) for one in sys.argv[1].split(",")], sys.argv[2], int(sys.argv[3])
    also = dict.fromkeys(sys.argv[4:], 1)
    if "SLOW" in os.environ:
        read_slowly(float(os.environ["SLOW"]))
    if "ROOM" in os.environ:
        limit_memory(int(os.environ["ROOM"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size,))
    total = int(os.environ.get("TOTAL", WIDTH * size))
    whole = torch.arange(total, dtype=torch.float32)
    state = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "alike": torch.zeros(1001), "n": 0}
    rate = float(os.environ["RATE"]) if "RATE" in os.environ else None
    checkpointers = [
        Checkpointer(
            state,
            directory,
            every=1,
            persist=1000,
            protect=protect,
            protect_rate=rate,
            also=also,
            reshard="TOTAL" in os.environ,
        )
        for directory in directories
    ]
    start = checkpointers[0].restore() or 0
    assert all((checkpointer.restore() or 0) == start for checkpointer in checkpointers[1:])
    local = state["sharded"].to_local()
    width = total // size
    expected = torch.arange(width * rank, width * (rank + 1), dtype=torch.float32) + start
    assert torch.equal(local, expected), f"rank {rank}: its shard is not that of step {start}"
    assert state["n"] == start and bool((state["alike"] == start).all())
    print("restored", start, flush=True)
    if "HOLD" in os.environ:
        sys.stdin.readline()
    step = start
    while steps:
        for _ in range(steps):
            step += 1
            state["sharded"].to_local().add_(1)
            state["alike"].fill_(step)
            state["n"] = step
            for checkpointer in checkpointers:
                checkpointer.save(step)
            print("step", step, flush=True)
        for checkpointer in checkpointers:
            checkpointer._saver.settle()
        print("settled", flush=True)
        steps = int((sys.stdin.readline().split() or ["go", "0"])[1])
    for checkpointer in checkpointers:
        checkpointer.close(strict=True)
    print("closed", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
