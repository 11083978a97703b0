"""The frameworks' own resume and warning beside transom's callbacks, with the same faults.

    .frameworks/bin/python bench/frameworks_own_way.py [--runs 3]

Two ranks, without Slurm: an `scontrol` of the bench's own notes Lightning's request to requeue. Each run is ended by a
fault after step 23 to 29, then started again until its end. Own way: `resume_from_checkpoint=True` and
`enable_jit_checkpoint` (SIGTERM) of Hugging Face, the newest file and `auto_requeue` (SIGUSR1) of Lightning. With
transom: `latest`, and SIGUSR2 as in a script without a launcher. Lost: steps that are made again. Wrong: steps whose
batch is not that of the undisturbed training. Broken: runs that do not end within two minutes, or fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINER = Path(__file__).with_name("own_way_trainer.py")
FAULTS = ("rank killed", "newest half-written", "warned")
WARNING = {("huggingface", "own"): signal.SIGTERM, ("lightning", "own"): signal.SIGUSR1}
PATIENCE = 120.0


def start(framework: str, way: str, folder: Path, attempt: int) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TRANSOM_"))}
    env |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": f"{folder}/bin:{env['PATH']}"}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2"}
    slurm |= {"SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1", "SLURM_JOB_NODELIST": "127.0.0.1"}
    ranks = []
    for rank in range(2):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"}
        of_rank["SLURM_NODEID"] = str(rank)
        command = (sys.executable, str(TRAINER), framework, way, str(folder / "out"))
        with (folder / f"rank-{rank}.{attempt}").open("wb") as log:
            own = {**env, **of_rank, **(slurm if framework == "lightning" else {})}
            ranks.append(subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT))
    return ranks


def seen(folder: Path, attempt: int) -> list[tuple[int, str]]:
    """Steps and batches of rank 0."""
    words = [line.split() for line in (folder / f"rank-0.{attempt}").read_text(errors="replace").splitlines()]
    return [(int(word[1]), word[2]) for word in words if len(word) == 3 and word[0] == "saw" and word[1].isdecimal()]


def ended(ranks: list[subprocess.Popen[bytes]], patience: float) -> bool:
    """Whether all ranks end by themselves, without an error."""
    deadline = time.monotonic() + patience
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    good = all(rank.poll() == 0 for rank in ranks)
    for rank in ranks:
        rank.kill()
        rank.wait()
    return good


def hurt(fault: str, framework: str, way: str, folder: Path, step: int) -> int:
    """Make the first attempt end by the fault. Return the last step that it made."""
    ranks = start(framework, way, folder, 0)
    deadline = time.monotonic() + PATIENCE
    while max((one for one, _ in seen(folder, 0)), default=0) < step and time.monotonic() < deadline:
        time.sleep(0.02)
    if fault == "warned":
        for rank in ranks:
            rank.send_signal(WARNING.get((framework, way), signal.SIGUSR2))
        ended(ranks, 40.0)  # then the time is over
    else:
        ranks[1].kill()
        time.sleep(1.0)
        ended(ranks, 0.0)
    if fault == "newest half-written":
        out = folder / "out"
        found = [path for path in (*out.glob("checkpoint-*"), *out.glob("*.ckpt")) if path.is_dir() or path.is_file()]
        newest = max(found, key=lambda path: path.stat().st_mtime)
        largest = max(newest.rglob("*.safetensors"), default=newest)
        os.truncate(largest, largest.stat().st_size // 2)
    return max((one for one, _ in seen(folder, 0)), default=0)


def one(fault: str, framework: str, way: str, number: int, right: dict[int, str]) -> tuple[int, int, bool]:
    """Return lost steps, wrong batches, and whether the run is broken."""
    folder = Path(tempfile.mkdtemp(prefix="own-way-"))
    try:
        (folder / "bin").mkdir()
        (folder / "bin" / "scontrol").write_text("#!/bin/sh\nexit 0\n")
        (folder / "bin" / "scontrol").chmod(0o755)
        last = hurt(fault, framework, way, folder, 23 + 2 * number % 7)
        good = ended(start(framework, way, folder, 1), PATIENCE)
        again = seen(folder, 1)
        lost = last + 1 - again[0][0] if again else last
        return max(0, lost), sum(right.get(step) != batch for step, batch in again), not good
    finally:
        shutil.rmtree(folder)


def undisturbed(framework: str) -> dict[int, str]:
    folder = Path(tempfile.mkdtemp(prefix="own-way-"))
    (folder / "bin").mkdir()
    assert ended(start(framework, "own", folder, 0), PATIENCE), (folder / "rank-0.0").read_text()[-3000:]
    found = dict(seen(folder, 0))
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    print(
        f"{'framework':<12} {'fault':<20} {'way':<8} {'lost steps':>18} {'wrong batches':>14} {'broken':>8}   n={runs}"
    )
    for framework in ("huggingface", "lightning"):
        right = undisturbed(framework)
        for fault in FAULTS:
            for way in ("own", "transom"):
                found = [one(fault, framework, way, number, right) for number in range(runs)]
                lost = [steps for steps, _, _ in found]
                words = f"{statistics.median(lost):g} ({min(lost)} to {max(lost)})"
                wrong, broken = sum(batches for _, batches, _ in found), sum(bad for _, _, bad in found)
                print(f"{framework:<12} {fault:<20} {way:<8} {words:>18} {wrong:>14} {broken:>8}", flush=True)


if __name__ == "__main__":
    main()
