"""Two ranks of a real gloo group: which rank waits in collectives, and for which."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.heartbeat import account as ac

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
SLOW = 0.15
TRAINER = f"""
import time
import torch
import torch.distributed as dist
from transom_cli import beat
from transom_cli.heartbeat import collectives

torch.set_num_threads(1)
assert collectives.install() and collectives.install()
dist.init_process_group("gloo")
rank = dist.get_rank()
with beat.phase("start"):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    assert collectives.watch_ddp(model)
    dist.barrier()
beat(0)
for step in range(1, 4):
    with beat.phase("forward"):
        loss = model(torch.ones(2, 8)).sum()
        time.sleep({SLOW} if rank == 1 else 0)
    with beat.phase("backward"):
        loss.backward()
    beat(step)
time.sleep(0.26)  # so that it is told
beat(step)
"""
CALLS = f"""
import time
import torch
import torch.distributed as dist
from transom_cli import beat
from transom_cli.heartbeat import collectives

collectives.install()
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
beat(0)
one, parts = torch.ones(1), [torch.ones(1), torch.ones(1)]
for step, call in enumerate((
    lambda: dist.all_reduce(one),
    lambda: dist.all_reduce(one, async_op=True).wait(),
    lambda: dist.all_gather(parts, one),
    lambda: dist.broadcast_object_list([step], src=1),
    lambda: dist.barrier(),
)):
    with beat.phase("forward"):
        time.sleep({SLOW} if rank == 1 else 0)
    call()
    time.sleep(0.26)  # so that each is told
    beat(step + 1)
"""


def run(code: str, folder: Path) -> list[dict[str, float]]:
    """What each of two ranks has spent, in seconds, by phase."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    clean |= {"PYTHONPATH": str(ROOT), "TRANSOM_BEAT_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    clean |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env={**clean, "RANK": str(r)}, stderr=pipe, text=True)
        for r in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
    found = [ac.newest((folder / f"rank-{r}").read_bytes()) for r in range(2)]
    return [{name: ns / 1e9 for name, ns in one.ns.items()} for one in found if one is not None]


@pytest.mark.long
def test_ddp_waits_at_the_end_of_backward(tmp_path: Path) -> None:
    waiting, slow = run(TRAINER, tmp_path)
    assert slow["forward"] > 2 * SLOW
    assert waiting["wait"] > slow["wait"] + 2 * SLOW
    assert waiting["backward"] < waiting["wait"]


def test_collectives_of_every_kind(tmp_path: Path) -> None:
    waiting, slow = run(CALLS, tmp_path)
    assert slow["forward"] > 5 * SLOW
    assert waiting["wait"] > slow["wait"] + 4 * SLOW


@pytest.mark.long
def test_outside_transom_nothing_is_wrapped() -> None:
    code = (
        "import torch.distributed as dist; from transom_cli.heartbeat import collectives; before = dist.all_reduce\n"
        "assert not collectives.install() and dist.all_reduce is before\n"
        "import torch; assert not collectives.watch_ddp(torch.nn.Linear(2, 2))\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    env = {**clean, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Event:
    """As torch.cuda.Event: passes when the device gets there."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def record(self) -> None:
        self._at = self._cuda.enqueued

    def query(self) -> bool:
        return self._at <= self._cuda.reached

    def elapsed_time(self, end: Event) -> float:
        return end._at - self._at


class Cuda:
    """A device whose queue is `enqueued` ms long, of which it has done `reached`."""

    def __init__(self) -> None:
        self.enqueued = self.reached = 0.0
        self.capturing = False
        self.made = 0

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.made += 1
        return Event(self)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def test_the_devices_clock_waits_for_nothing_and_loses_nothing() -> None:
    from transom_cli.heartbeat.collectives import DeviceClock

    cuda = Cuda()
    clock = DeviceClock(cuda)
    told: list[tuple[int, int]] = []
    for step in range(100):
        for phase, ms in ((1, 5.0), (2, 20.0), (0, 1.0)):
            cuda.enqueued += ms
            cuda.capturing = step == 50
            clock.change(phase)
        cuda.reached = max(0.0, cuda.enqueued - 60)  # the host is some steps ahead
        told += clock.done()
    cuda.reached = cuda.enqueued
    told += clock.done()
    sums = {phase: sum(ns for p, ns in told if p == phase) / 1e6 for phase in (0, 1, 2)}
    assert sum(sums.values()) == pytest.approx(100 * 26)
    assert sums == pytest.approx({0: 99.0, 1: 99 * 5.0 + 26.0, 2: 99 * 20.0}), "a capture runs into the next phase"
    assert cuda.made < 20, "events are used again"
