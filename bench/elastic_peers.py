"""One node of four dies without a spare, and later there are four again: transom, torchrun, torchft, and a requeue.

    python bench/elastic_peers.py [--rounds 1] [--ways transom,requeue,torchrun,torchft] [--torchft DIR]

The same model, data and number of steps (bench/elastic_trainer.py). transom and the requeue run in a Slurm sandbox with
a fifth node. The four agents of `torchrun --nnodes 2:4`, and torchft's four replica groups, are processes: one is
killed with its rank, and another is started when the others have stepped. DIR has torchft-nightly.

Prints, from what the ranks recorded: seconds from the fault to the first new step, how many of them the new launch took
from its order to that step, seconds to the first step on four nodes, and without a new step in all; samples used twice
or left out; the final loss.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from harness import Bench, BenchError, LiveRun, progress, run_bench, wait_for

from transom_cli.elastic import GlobalBatches
from transom_cli.layout import RunDir
from transom_cli.rpc.sockets import free_port
from transom_cli.sandbox import faults

TRAINER = Path(__file__).with_name("elastic_trainer.py")
FAULT, STEPS, PATIENCE = 25, 160, 600.0
SIZE, BATCH = 12_000, 48  # as in the trainer
TOGETHER = 5.0  # seconds between the ranks of one launch in one step, at most; a new launch takes longer to come


def trace(folder: Path) -> list[dict[str, Any]]:
    """What the ranks recorded, by time. began: when the rank's process did."""
    found = []
    for path in folder.glob("trace-*.jsonl"):
        began = int(path.name.split("-")[1]) / 1e9
        lines = path.read_text().splitlines()
        found += [{**json.loads(line), "began": began} for line in lines if line.endswith("}")]
    return sorted(found, key=lambda one: one["at"])


def stepped(folder: Path, step: int, world: int = 0, since: float = 0.0) -> bool:
    return any(one["step"] >= step and world in (0, one["world"]) and one["at"] >= since for one in trace(folder))


def process(argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, to be killed with its rank."""
    with log.open("ab") as out:
        return subprocess.Popen(argv, env={**os.environ, **env}, stdout=out, stderr=out, start_new_session=True)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def torchrun(folder: Path) -> float:
    port = free_port()

    def agent(number: int) -> subprocess.Popen[bytes]:
        if number:  # the first one serves the rendezvous, which a killed agent must not
            wait_for(lambda: listens(port), PATIENCE, "the rendezvous")
        words = ["--nnodes=2:4", "--nproc-per-node=1", "--max-restarts=10", "--rdzv-backend=c10d", "--rdzv-id=bench"]
        words += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
        argv = [sys.executable, "-m", "torch.distributed.run", *words, str(TRAINER), "usual", str(folder)]
        return process(argv, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, folder / f"agent-{number}.log")

    return replaced(folder, agent)


def torchft(folder: Path, packages: Path) -> float:
    port = free_port()
    env = {"PYTHONPATH": str(packages.resolve()), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    script = folder / "lighthouse.py"  # it reads its arguments behind a script's name
    script.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
    words = ["--min_replicas", "2", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
    lighthouse = [sys.executable, str(script), *words, "--bind", f"127.0.0.1:{port}"]

    def replica(number: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(TRAINER), "torchft", str(folder), "--replica", str(min(number, 3))]
        return process(argv, env, folder / f"replica-{number}.log")

    server = process(lighthouse, env, folder / "lighthouse.log")
    try:
        return replaced(folder, replica)
    finally:
        kill_session(server)


def replaced(folder: Path, member: Callable[[int], subprocess.Popen[bytes]]) -> float:
    """Start four members, kill the last one, start another after steps of the others. Returns when the fault was."""
    members = [member(number) for number in range(4)]
    try:
        wait_for(lambda: stepped(folder, FAULT, 4), PATIENCE, "the training")
        at, newest = time.time(), max(one["step"] for one in trace(folder))
        kill_session(members.pop())
        wait_for(lambda: stepped(folder, newest + 1, 3, at), PATIENCE, "the training on three nodes")
        members.append(member(4))
        wait_for(lambda: (folder / "loss").exists(), PATIENCE, "the end of the training")
        return at
    finally:
        for one in members:
            kill_session(one)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill an agent and its rank: all processes of its session."""
    import psutil

    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == process.pid or one.ppid() == process.pid:
                one.send_signal(signal.SIGKILL)
        except (OSError, psutil.Error):
            continue
    process.wait()


def in_slurm(folder: Path, bench: Bench, size: str) -> tuple[float, list[float]]:
    """Returns when the fault was, and when launches were ordered."""
    ask = ["--root", str(bench.runs), "--name", f"peer-{folder.name}", "-N", size, "--set", "health.preflight=off"]
    train = [bench.python, str(TRAINER), "exact", str(folder)]
    run = LiveRun(
        bench,
        RunDir(bench.runs / bench.transom("run", *ask, "--detach", "--", *train, timeout_s=240.0)),
        folder / "none",
    )
    bench._made.append(run)
    wait_for(lambda: stepped(folder, FAULT), PATIENCE, "the training under transom")
    job = next(job for job in bench.slurm.jobs() if not job.state.ended)
    at = time.time()
    faults.kill_node(bench.sandbox, next(node for node in job.nodes if node != job.batch_host))
    view = run.wait_over(PATIENCE)
    if view.exit_code:
        raise BenchError(f"Run {run.name} {view.phase}", view.verdict)
    lines = [line for path in run.dir.attempts.glob("*/launcher.jsonl") for line in path.read_text().splitlines()]
    return at, [one["wall"] for one in map(json.loads, lines) if one["type"] == "launch"]


def judged(way: str, folder: Path, at: float, orders: list[float]) -> dict[str, Any]:
    lines = trace(folder)
    if way == "torchft":  # the ranks live on; a step that was under way may still end
        newest = max(one["step"] for one in lines if one["at"] < at)
        later = [one for one in lines if one["at"] > at and one["world"] == 3]
        new = min(one["at"] for one in later if one["step"] > newest)
        back = min((one["at"] for one in lines if one["at"] > new and one["world"] == 4), default=None)
    else:
        newest = max(one["step"] for one in lines if one["began"] < at)
        new = min(one["at"] for one in lines if one["began"] > at and one["step"] > newest)
        back = min((one["at"] for one in lines if one["began"] > at and one["world"] == 4), default=None)
    ordered = max((one for one in orders if at < one < new), default=None)
    last: dict[int, float] = {}  # when the last launch made a step
    firsts: dict[int, float] = {}
    for one in lines:
        last[one["step"]] = one["at"]
        firsts.setdefault(one["step"], one["at"])
    used = Counter(sample for one in lines if last[one["step"]] - one["at"] < TOGETHER for sample in one["samples"])
    times = sorted(firsts.values())
    gaps = [b - a for a, b in pairwise(times)]
    usual = sorted(gaps)[len(gaps) // 2]
    return {
        "way": way, "first_step": round(new - at, 1), "startup": None if ordered is None else round(new - ordered, 1),
        "four_nodes": None if back is None else round(back - at, 1),
        "lost": round(sum(gap - usual for gap in gaps if gap > 4 * usual), 1),
        "twice": sum(count - 1 for count in used.values() if count > 1),
        "left_out": len(set(expected(way)) - set(used)),
        "samples": used.total(), "loss": float((folder / "loss").read_text()),
    }  # fmt: skip


def expected(way: str) -> list[int]:
    """The samples that an undisturbed training uses."""
    if way not in ("torchrun", "torchft"):
        return GlobalBatches(SIZE, BATCH, 12).samples(0, STEPS * BATCH)
    return torch.randperm(SIZE, generator=torch.Generator().manual_seed(0)).tolist()[: STEPS * BATCH]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ways", default="transom,requeue,torchrun")
    parser.add_argument("--torchft", metavar="DIR", type=Path, default=Path(".torchft"))
    args = parser.parse_args()
    ways, found = args.ways.split(","), []
    with tempfile.TemporaryDirectory() as root, Bench(nodes=5) as bench:
        for number in range(args.rounds):
            for way in ways:
                folder = Path(root) / f"{way}-{number}"
                folder.mkdir()
                sizes = {"transom": "2-4", "requeue": "4"}
                orders: list[float] = []
                if way == "torchrun":
                    at = torchrun(folder)
                elif way == "torchft":
                    at = torchft(folder, args.torchft)
                else:
                    at, orders = in_slurm(folder, bench, sizes[way])
                found.append(judged(way, folder, at, orders))
                progress(json.dumps(found[-1]))
                bench.heal()
    names = ("first step", "start-up", "on 4 nodes", "time lost", "twice", "left out", "loss")
    print(f"{'way':<10} " + " ".join(f"{name:>11}" for name in names))
    for one in found:
        back = "never" if one["four_nodes"] is None else f"{one['four_nodes']} s"
        startup = "" if one["startup"] is None else f"{one['startup']} s"
        cells = (
            f"{one['first_step']} s",
            startup,
            back,
            f"{one['lost']} s",
            one["twice"],
            one["left_out"],
            one["loss"],
        )
        print(f"{one['way']:<10} " + " ".join(f"{cell:>11}" for cell in cells))
    return 0


if __name__ == "__main__":
    run_bench(main)
