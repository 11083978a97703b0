"""The frameworks' own resume and warning beside transom's callbacks, with the same faults.

    .frameworks/bin/python bench/frameworks_own_way.py [--runs 8] [--only lightning]

Two ranks, without Slurm: an `scontrol` of the bench's own notes Lightning's request to requeue. Each run is ended by a
fault after step 23 to 29, then started again until its end. The ranks are forked from this process, which has imported
the frameworks.

Own way: `resume_from_checkpoint=True` and `enable_jit_checkpoint` (SIGTERM) of Hugging Face; the newest file and
`auto_requeue` (SIGUSR1) of Lightning; torchtitan's checkpoint manager, which knows no warning (SIGTERM). With transom:
`latest`, and SIGUSR2 as in a script without a launcher.

Lost: steps that are made again. Wrong: steps whose batch is not that of the undisturbed training. Broken: runs that do
not end within two minutes, or fail.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

FAULTS = ("rank killed", "newest half-written", "warned")
WARNING = {
    ("huggingface", "own"): signal.SIGTERM,
    ("lightning", "own"): signal.SIGUSR1,
    ("torchtitan", "own"): signal.SIGTERM,
}
IMPORTS = {
    "huggingface": ("transformers", "transom_cli.integrations.huggingface"),
    "lightning": ("lightning", "transom_cli.integrations.lightning"),
    "torchtitan": ("torchtitan.components.checkpointer", "transom_cli.integrations.torchtitan"),
}
PATIENCE = 120.0


class Rank:
    """A forked process."""

    def __init__(self, framework: str, way: str, folder: Path, log: Path, env: dict[str, str]) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                os.environ.update(env)
                code = _train(framework, way, folder / "out")
                sys.stdout.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        self.send_signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)


def _train(framework: str, way: str, out: Path) -> int:
    from own_way_trainer import train

    try:
        train(framework, way, out)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start(framework: str, way: str, folder: Path, attempt: int) -> list[Rank]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2"}
    slurm |= {"SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1", "SLURM_JOB_NODELIST": "127.0.0.1"}
    ranks = []
    for rank in range(2):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"}
        of_rank["SLURM_NODEID"] = str(rank)
        own = {**env, **of_rank, **(slurm if framework == "lightning" else {})}
        ranks.append(Rank(framework, way, folder, folder / f"rank-{rank}.{attempt}", own))
    return ranks


def seen(folder: Path, attempt: int) -> list[tuple[int, str]]:
    """Steps and batches of rank 0."""
    words = [line.split() for line in (folder / f"rank-0.{attempt}").read_text(errors="replace").splitlines()]
    return [(int(word[1]), word[2]) for word in words if len(word) == 3 and word[0] == "saw" and word[1].isdecimal()]


def ended(ranks: list[Rank], patience: float) -> bool:
    """Whether all ranks end by themselves, without an error."""
    deadline = time.monotonic() + patience
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    good = all(rank.poll() == 0 for rank in ranks)
    for rank in ranks:
        rank.end()
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
        ranks[1].send_signal(signal.SIGKILL)
        time.sleep(1.0)
        ended(ranks, 0.0)
    if fault == "newest half-written":
        out = folder / "out"
        found = [*out.glob("checkpoint-*"), *out.glob("*.ckpt"), *out.glob("checkpoint/step-*")]
        newest = max(found, key=lambda path: path.stat().st_mtime)
        largest = max([*newest.rglob("*.safetensors"), *newest.rglob("*.distcp")], default=newest)
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
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--only", choices=IMPORTS)
    args = parser.parse_args()
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TRANSOM_"))]:
        del os.environ[name]
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    print(
        f"{'framework':<12} {'fault':<20} {'way':<8} {'lost steps':>18} {'wrong batches':>14} {'broken':>8}"
        f"   n={args.runs}"
    )
    for framework in [args.only] if args.only else IMPORTS:
        for name in ("own_way_trainer", *IMPORTS[framework]):
            importlib.import_module(name)
        right = undisturbed(framework)
        for fault in FAULTS:
            for way in ("own", "transom"):
                found = [one(fault, framework, way, number, right) for number in range(args.runs)]
                lost = [steps for steps, _, _ in found]
                words = f"{statistics.median(lost):g} ({min(lost)} to {max(lost)})"
                wrong, broken = sum(batches for _, batches, _ in found), sum(bad for _, _, bad in found)
                print(f"{framework:<12} {fault:<20} {way:<8} {words:>18} {wrong:>14} {broken:>8}", flush=True)


if __name__ == "__main__":
    main()
