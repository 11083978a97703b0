"""Kill a training of real gloo ranks over and over: is each restore right, and how many steps does each kill cost?

    python bench/ckpt_kills.py --kills 1000 --seed 1 [--from K] [--nodes 2] [--per-node 2]

Nodes are folders of this machine with a snapshot daemon each, which protect one another's snapshots (`replica`). Each
restart assigns the ranks to the nodes in another order. Each kill is one of: a trainer (or all), also in the middle of
a save; a daemon, then the trainers; a trainer and a daemon at the same instant; a node with all that is on it. Kill k
depends on the seed and on k only, so that a campaign can be split: `--from K` begins with kill K in a new directory.

The state at step n is n everywhere, and every value is checked after each restore. A restore is wrong if it finds other
values, if it starts over, or if it loses more than promised: after a kill of trainers or of one daemon, the save that
had not returned and the one before it, which may not have been committed; after the loss of a node, what was not
protected. Prints one line for each kill and a table; exit code 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import random
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.names import parse_step
from transom_cli.ckpt.snapshot.client import LINGER, agents_path
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.local import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "ckpt"))
from ckpt_memory_kill_driver import MID_COPY, STAGES, Board, PerRank, die_at, ended, slay

WIDTH = 1 << 14
PERSIST = 20  # one of so many saves is made durable
LONGEST = 150.0  # seconds for a training to come up or to go on, on a busy machine
TRAINER, ALL, WITHIN, DAEMON, BOTH, NODE = "a trainer", "all trainers", "within a save", "a daemon", "both", "a node"
KINDS = {TRAINER: 3, ALL: 2, WITHIN: 3, DAEMON: 2, BOTH: 2, NODE: 3}  # how often each comes


def train(rank: int, node: str, beats: Path, place: Path, board: Board, stage: Any, size: int, meeting: Path) -> None:
    os.environ |= {"TRANSOM_BEAT_DIR": str(beats), "SLURMD_NODENAME": node, "RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    whole = torch.zeros(WIDTH * size)
    held: dict[str, Any] = {"n": -1, "own": PerRank(rank), "alike": torch.full((WIDTH,), -1, dtype=torch.int32)}
    held["sharded"] = distribute_tensor(whole, init_device_mesh("cpu", (size,)), [Shard(0)])
    checkpointer = Checkpointer(held, place, every=1, persist=PERSIST, protect="replica")
    start = checkpointer.restore() or 0
    if start:
        assert (held["n"], held["own"].n) == (start, start), (start, held["n"], held["own"].n)
        assert bool((held["alike"] == start).all()), f"not that of step {start}"
        assert bool((held["sharded"].to_local() == start * size + rank).all()), f"not the shard of rank {rank}"
    board.found = start
    if stage is not None:
        die_at(*stage)
    for step in range(start + 1, start + 1_000_000):
        held["n"] = held["own"].n = step
        held["alike"].fill_(step)
        held["sharded"].to_local().fill_(step * size + rank)
        dist.barrier()  # as the gradients of a step
        checkpointer.save(step)
        board.returned = step


class Campaign:
    def __init__(self, root: Path, seed: int, nodes: int, per_node: int) -> None:
        self.seed, self.size = seed, nodes * per_node
        self.place, self.root = root / "checkpoints", root
        self.beats = {f"n{n}": root / f"n{n}" for n in range(nodes)}
        for folder in self.beats.values():
            folder.mkdir(mode=0o700)
        self.boards = [Board() for _ in range(self.size)]
        self.pids: list[int] = []
        self.order: list[str] = []
        self.least = self.most = 0

    def start(self, number: int, luck: random.Random, kind: str) -> int | None:
        """Launch with the ranks on the nodes in another order. Returns the restored step, None if none was."""
        per_node = self.size // len(self.beats)
        self.order = [node for node in self.beats for _ in range(per_node)]
        luck.shuffle(self.order)
        self.victim = luck.randrange(self.size)
        stage = None
        if kind == WITHIN:
            stage = luck.choice([*STAGES, MID_COPY])
            if stage[0] == "persist":  # rank 0 alone requests it
                self.victim = 0
            stage = (stage, luck.randrange(2 if stage[0] == "persist" else 25))
        os.environ |= {"TRANSOM_ATTEMPT": "7.0", "TRANSOM_LAUNCH": str(number)}
        for board in self.boards:
            board.clear()
        meeting = self.root / f"meeting-{number}"
        self.pids = [
            self._fork(rank, node, stage if rank == self.victim else None, meeting)
            for rank, node in enumerate(self.order)
        ]
        if not self.until(lambda: all(board.found >= 0 for board in self.boards)):
            return None
        found = {board.found for board in self.boards}
        return found.pop() if len(found) == 1 else None

    def _fork(self, rank: int, node: str, stage: Any, meeting: Path) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                train(rank, node, self.beats[node], self.place, self.boards[rank], stage, self.size, meeting)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        return pid

    def until(self, claim: Any, *, may_die: bool = False) -> bool:
        deadline = time.monotonic() + LONGEST
        while not claim():
            if time.monotonic() > deadline or (not may_die and any(ended(pid) for pid in self.pids)):
                return bool(claim())
            time.sleep(0.005)
        return True

    def strike(self, luck: random.Random, kind: str) -> str:
        """Kill. Sets the oldest step that must come back, and the newest that was saved on all ranks."""
        node = self.order[self.victim]
        if kind == WITHIN:
            if not self.until(lambda: ended(self.pids[self.victim]), may_die=True):
                return "it never came to the point"
        else:
            came = min(board.found for board in self.boards) + luck.randrange(1, 12)
            if not self.until(lambda: min(board.returned for board in self.boards) >= came):
                return "the training did not go on"
            time.sleep(luck.uniform(0.0, 0.1))
        kept = self._protected() if kind in (BOTH, NODE) else None
        if kind in (DAEMON, BOTH, NODE):
            os.kill(self._daemon(node), signal.SIGKILL)
        if kind == DAEMON:
            beyond = max(board.returned for board in self.boards) + 4  # by then all ranks have told the next daemon
            if not self.until(lambda: min(board.returned for board in self.boards) >= beyond):
                return "the training did not go on without its daemon"
        doomed = {NODE: [pid for pid, on in zip(self.pids, self.order, strict=True) if on == node], ALL: self.pids}
        for pid in doomed.get(kind, [self.pids[self.victim]]):
            os.kill(pid, signal.SIGKILL)
        time.sleep(luck.uniform(0.0, 0.1))  # the others go on, or wait
        slay(self.pids)
        self.most = max(0, min(max(board.found, board.returned) for board in self.boards))
        self.least = max(0, self.most - 1) if kept is None else kept
        return ""

    def _protected(self) -> int:
        """The newest step that survives the loss of any node."""
        found = []
        for folder in self.beats.values():
            client = connect(agents_path(str(folder)))
            client.call("look", directory=str(self.place), token=(self.place / ".memory").read_text())
            found.append(client.call("state")[0]["protected"] or 0)
            client.close()
        return max([min(found), *filter(None, (parse_step(path.name) for path in self.place.iterdir()))])

    def _daemon(self, node: str) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(agents_path(str(self.beats[node])))
            raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[0])

    def close(self) -> None:
        with suppress(ProcessLookupError):
            slay(self.pids)
        for folder in self.beats.values():
            with suppress(OSError, RpcError):
                client = connect(agents_path(str(folder)))
                client.call("end")
                client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="K")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--per-node", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    for name in ("torch._dynamo", "numpy.random", "statistics"):  # once, and not in each rank
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    os.environ |= {LINGER: "300", "GLOO_SOCKET_IFNAME": "lo"}
    root = Path(tempfile.mkdtemp(prefix="kills-", dir="/dev/shm"))
    campaign = Campaign(root, options.seed, options.nodes, options.per_node)
    table: dict[str, Counter[int]] = {}
    wrong, last = 0, ""
    for number in range(options.first, options.first + options.kills + 1):
        luck = random.Random(f"{options.seed} {number}")
        kind = luck.choices(list(KINDS), list(KINDS.values()))[0]
        found = campaign.start(number, luck, kind)
        if last:
            before = f"{number - 1}: {last}: at {campaign.most}, "
            if found is None:
                print(f"{before}WRONG: no restore, or not the same on all ranks", flush=True)
                wrong += 1
                break
            lost = campaign.most - found
            right = max(campaign.least, 1 if campaign.most > 1 else 0) <= found <= campaign.most + 2
            wrong += not right
            table.setdefault(last, Counter())[lost] += 1
            verdict = "" if right else f" WRONG: {campaign.least} at least"
            print(f"{before}restored {found} on {' '.join(campaign.order)}, lost {lost}{verdict}", flush=True)
        elif found is None:
            print("the training did not start", flush=True)
            wrong += 1
            break
        if number == options.first + options.kills:
            break
        trouble = campaign.strike(luck, kind)
        if trouble:
            print(f"{number}: {kind}: WRONG: {trouble}", flush=True)
            wrong += 1
            break
        last = kind
    campaign.close()
    shutil.rmtree(root, ignore_errors=True)
    print(f"\nsteps lost by kind of kill (seed {options.seed}, from {options.first}):")
    for what, counts in sorted(table.items()):
        steps = ", ".join(f"{n}: {count}" for n, count in sorted(counts.items()))
        print(f"  {what:14} {sum(counts.values()):5} kills  {steps}")
    print(f"{sum(sum(counts.values()) for counts in table.values())} kills, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
