"""Measure a cold restore: the time until the trainer's tensors hold a checkpoint that is not in the page cache.

    python bench/ckpt_cold.py [--gib 1] [--rounds 8] [--old DIR] [--dir DIR]

In turns, each in a new process, of one rank, with the state of bench/ckpt.py:

    floor 1, floor 4   only read the same bytes with O_DIRECT, with one request of 8 MiB under way, or four
    transom            Checkpointer.restore(), which verifies every byte
    old                the same of another tree, given as --old DIR
    dcp                torch.distributed.checkpoint.load of a checkpoint that it wrote, which verifies nothing

Seconds: median, minimum, and the median of the ratios to `floor 1` of the same round. Every load is compared, bit for
bit.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ckpt_pages import cached, drop
from ckpt_plan import plan

GIB = 1 << 30
PIECE = 8 << 20
STEP = 7


def floor(folder: Path, streams: int) -> float:
    drop(folder)
    began = time.perf_counter()
    for path in sorted((folder / f"step-{STEP}").iterdir()):
        fd, size = os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size
        buffers = [mmap.mmap(-1, PIECE) for _ in range(streams)]

        def some(index: int, fd: int = fd, size: int = size, buffers: list[mmap.mmap] = buffers) -> None:
            for at in range(index * PIECE, size, streams * PIECE):
                os.preadv(fd, [buffers[index]], at)

        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(some, range(streams)))
        os.close(fd)
    return time.perf_counter() - began


def made_state(gib: float) -> Any:
    import torch
    from ckpt_state import State

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return State(plan(int(gib * GIB)), 0, 1, None)


def make(gib: float, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    from transom_cli.ckpt.checkpointer import Checkpointer

    state = made_state(gib)
    state.fill()
    state.stamp(STEP)
    checkpointer = Checkpointer(dict(state.tensors), folder / "transom", every=1)
    checkpointer.save(STEP)
    checkpointer.close(strict=True)
    dcp.save(dict(state.tensors), checkpoint_id=folder / "dcp" / f"step-{STEP}", no_dist=True)


def load(method: str, gib: float, folder: Path) -> float:
    state = made_state(gib)
    state.scrub()
    if method == "dcp":
        import torch.distributed.checkpoint as dcp

        drop(folder)
        began = time.perf_counter()
        dcp.load(dict(state.tensors), checkpoint_id=folder / f"step-{STEP}", no_dist=True)
        took = time.perf_counter() - began
    else:
        from transom_cli.ckpt.checkpointer import Checkpointer

        checkpointer = Checkpointer(dict(state.tensors), folder, every=1)
        drop(folder)
        if cached(folder):
            raise SystemExit("the files cannot be evicted from the page cache")
        began = time.perf_counter()
        checkpointer.restore()
        took = time.perf_counter() - began
        checkpointer.close()
    if wrong := state.wrong(STEP):
        raise SystemExit(f"{method} loaded another {wrong}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="[1]")
    parser.add_argument("--rounds", type=int, default=8, help="[8]")
    parser.add_argument("--old", type=Path, metavar="DIR", help="another tree of transom to compare with")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="a folder on the disk to measure [the temporary one]")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        method, folder = args.one[0], Path(args.one[1])
        took = floor(folder, int(method.split()[1])) if method.startswith("floor") else load(method, args.gib, folder)
        print(json.dumps(took))
        return
    where = Path(tempfile.mkdtemp(prefix="tbench-cold-", dir=args.dir)).absolute()
    try:
        make(args.gib, where)
        methods = ["floor 1", "floor 4", "transom", *(["old"] if args.old else []), "dcp"]
        times: dict[str, list[float]] = {method: [] for method in methods}
        for _ in range(args.rounds):
            for method in methods:
                tree = args.old if method == "old" else Path(__file__).parents[1]
                folder = where / ("dcp" if method == "dcp" else "transom")
                argv = [sys.executable, __file__, "--gib", str(args.gib), "--one", method, str(folder)]
                env = {**os.environ, "PYTHONPATH": f"{tree.absolute()}", "PYTHONDONTWRITEBYTECODE": "1"}
                done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
                times[method].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"load average {os.getloadavg()[0]:.1f}, {args.rounds} rounds, {args.gib:g} GiB")
        for method, found in times.items():
            ratio = statistics.median(a / b for a, b in zip(found, times["floor 1"], strict=True))
            print(f"{method:8} {statistics.median(found):.2f} s, least {min(found):.2f}, {ratio:.2f} times floor 1")
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
