"""One rank of a small training on gloo, with a real fault in it. `diagnosis_matrix` runs it under Slurm.

    python bench/diagnosis_trainer.py --fault KIND --rank RANK --at STEP --folder FOLDER [--timeout S] [--steps N]

It prints typical trainer output and sends heartbeats, which do nothing outside a run of transom. The time of the fault
is written to FOLDER/struck. A relaunched training has no fault.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

STEPS = 60
TIMEOUT = 5.0  # seconds of a collective; ten minutes elsewhere


def user_exception(folder: Path) -> None:
    {"loss": 1.0}["lr"]


def missing_module(folder: Path) -> None:
    import a_module_that_nobody_installed  # noqa: F401


def host_memory(folder: Path) -> None:
    import torch

    torch.empty(1 << 50, dtype=torch.uint8)


def killed(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def abort(folder: Path) -> None:
    os.abort()


def stopped(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def skips_collective(folder: Path) -> None:
    time.sleep(600)


def disk_full(folder: Path) -> None:
    import torch

    with Path("/dev/full").open("wb") as file:
        torch.save({"weights": torch.zeros(1 << 16)}, file)


def open_files(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [Path("/dev/null").open() for _ in range(100)]  # noqa: SIM115
    print(len(kept))


class Broken:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        raise ValueError(f"sample {index} has no label")


def bad_sample(folder: Path) -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(Broken(), num_workers=1):  # type: ignore[arg-type]
        pass


def corrupt_checkpoint(folder: Path) -> None:
    import torch

    path = folder / "checkpoint.pt"
    torch.save({"weights": torch.zeros(1 << 16)}, path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    torch.load(path)


def port_taken(folder: Path) -> None:
    import socket

    import torch.distributed as dist

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        dist.TCPStore("127.0.0.1", other.getsockname()[1], 1, True, timeout=timedelta(seconds=2))


def no_network(folder: Path) -> None:
    import urllib.request

    urllib.request.urlopen("https://models.invalid/weights")


def exits_nonzero(folder: Path) -> None:
    print("error: rank gives up")
    sys.exit(3)


FAULTS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        user_exception, missing_module, host_memory, killed, segfault, abort, stopped, skips_collective, disk_full,
        open_files, bad_sample, corrupt_checkpoint, port_taken, no_network, exits_nonzero,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="of a collective")
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    launch = os.environ.get("TRANSOM_LAUNCH", "0")
    faulthandler.enable()
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")  # before torch reads them
    import torch
    import torch.distributed as dist

    from transom_cli import beat

    store = dist.FileStore(str(asked.folder / f"store-{launch}"), world)
    patience = timedelta(seconds=asked.timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)
    torch.manual_seed(rank)
    weight = torch.zeros(64, 64)
    for step in range(asked.steps):
        if step == asked.at and asked.fault and rank == asked.rank and launch == "0":
            (asked.folder / "struck").write_text(repr(time.time()))
            if asked.fault in FAULTS:
                sys.stdout.flush()
                FAULTS[asked.fault](asked.folder)
        gradient = torch.randn(64, 64)
        dist.all_reduce(gradient)
        weight -= 0.01 * gradient
        loss = (
            float("nan") if asked.fault == "nan" and step >= asked.at else 3.0 / (1 + step) + float(weight.abs().mean())
        )
        print(f"[rank{rank}]: step {step}/{asked.steps} loss: {loss:.4f} | lr: 3.0e-04 | 1.{step:02d} s/it", flush=True)
        beat(step, loss=loss)
        time.sleep(0.02)
    dist.barrier()
    print(f"[rank{rank}]: training is done")


if __name__ == "__main__":
    main()
