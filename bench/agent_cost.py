"""Measure the cost of a node's agent: a real agent, and eight ranks that send heartbeats and write logs.

    python bench/agent_cost.py [--seconds 60] [--ranks 8] [--lines 1] [--watch 8] [--json]

Every rank sends ten heartbeats per second and writes a log line with each. Every hundredth line matches a log rule. The
agent's CPU time comes from /proc/<pid>/stat, including its children, as a share of one core from two seconds after its
start; its memory is RSS and PSS. It is probed every ten seconds, and its logs are requested once, as by a launcher
after a fault. Targets: 1% of a core, 60 MB (10^6 bytes) of RSS. Exit code 1 if a target is missed.

With --watch N, the bench measures twice: without and with the checks that are repeated every 30 s, including N GPUs.
The GPUs come from the sandbox's stub of NVIDIA's library, which answers faster than a driver. The watcher process is
included. Target for the watching alone: 0.5% of a core. Measure for two minutes or more, since it runs twice a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import from_tests  # noqa: F401
import nvml_stub
import psutil

from transom_cli.layout import AttemptDir, RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.client import Client

CPU, MEMORY = 1.0, 60.0  # percent of a core, MB
WATCH, EVERY = 0.5, 30.0  # percent of a core; seconds
NODE = "bench1"
ROOT = Path(__file__).resolve().parents[1]
WRAPPER = ROOT / "transom_cli" / "supervise" / "agent" / "rank_wrapper.py"
RANK = """
import sys, time
from transom_cli import beat
step = 0
while True:
    beat(step, loss=0.5)
    for _ in range(int(sys.argv[1])):
        print(f"step {step} loss {1 / (step + 1):.4f} tokens/s 123456.7 grad norm 0.93 lr 3.0e-4", flush=True)
    if step % 100 == 99:
        print(f"OSError: [Errno 28] No space left on device: '/scratch/part-{step}'", flush=True)
    step += 1
    time.sleep(0.1)
"""
TICKS = os.sysconf("SC_CLK_TCK")


Processes = list[subprocess.Popen[bytes]]


def start(
    attempt: AttemptDir, beats: Path, ranks: int, lines: int, gpus: int | None
) -> tuple[subprocess.Popen[bytes], Processes]:
    """The agent and the ranks' wrappers, as a launcher's steps start them."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    env |= {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": NODE}
    where = ["--attempt-dir", str(attempt.path)]
    wrappers = []
    for rank in range(ranks):
        words = [sys.executable, "-I", "-S", str(WRAPPER), *where, "--node-beats-dir", str(beats)]
        with (attempt.logs(0) / f"rank-{rank}.log").open("wb") as log:
            own = env | {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            command = [*words, "--", sys.executable, "-c", RANK, str(lines)]
            wrappers.append(subprocess.Popen(command, env=own, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
    words = [
        sys.executable,
        "-m",
        "transom_cli.supervise.agent.agent",
        *where,
        "--beats-dir",
        str(beats),
        "--node",
        NODE,
    ]
    if gpus is not None:
        about = {"tier": "watch", "gpus": gpus, "folders": [str(attempt.path)]}
        words += ["--watch", json.dumps({"every": EVERY, "about": about})]
        folder = attempt.path.parent
        env |= nvml_stub.environment(nvml_stub.build(folder / "nvml"), folder / "gpus")
        nvml_stub.write(folder / "gpus", NODE, nvml_stub.healthy(gpus, NODE))
    return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL), wrappers


def whole(agent: int) -> float:
    """CPU seconds of the agent and of what it has started."""
    return sum(cpu_seconds(pid) for pid in (agent, *(child.pid for child in psutil.Process(agent).children())))


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[n]) for n in range(11, 15)) / TICKS


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024 / 1e6
    return found["Rss"], found["Pss"]


def ask(run: RunDir, attempt: AttemptDir, *, logs: bool) -> dict[str, Any]:
    """A launcher's questions, and the agent's health reports."""
    port = int(json.loads(attempt.endpoint(NODE).read_text())["port"])
    with Client.connect("127.0.0.1", port, secret.read(run.secret), f"{attempt.name}/{NODE}", 5.0) as line:
        if logs:
            line.call("logs", 10.0, launch=0, rank=0)
        return dict(line.call("probe", 5.0)["health"])  # type: ignore[call-overload]


def measure(seconds: float, ranks: int, lines: int, gpus: int | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tagent-") as folder:
        run = RunDir(Path(folder))
        attempt = run.attempt(1, 0)
        attempt.logs(0).mkdir(parents=True)
        secret.make(run.secret)
        attempt.peers.write_text('{"allowed": ["127.0.0.1"], "nodes": {}}\n')
        agent, wrappers = start(attempt, Path(folder) / "beats", ranks, lines, gpus)
        try:
            while not attempt.endpoint(NODE).exists():
                if agent.poll() is not None:
                    raise SystemExit(f"the agent ended with exit code {agent.returncode}")
                time.sleep(0.1)
            time.sleep(2.0)  # its start is not its cost
            before, began, most = whole(agent.pid), time.monotonic(), (0.0, 0.0)
            start_up = before
            health: dict[str, Any] = {}
            while (took := time.monotonic() - began) < seconds:
                time.sleep(min(10.0, seconds - took))
                health = ask(run, attempt, logs=not health)
                most = max(most, memory(agent.pid))
            used = whole(agent.pid) - before
            took = time.monotonic() - began
            rss, pss = memory(agent.pid)
            found = attempt.findings(NODE).read_text().count("\n")
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
            for wrapper in wrappers:
                wrapper.kill()
                wrapper.wait()
        return {
            "cpu_percent": round(100 * used / took, 3),
            "rss_mb": round(rss, 1),
            "pss_mb": round(pss, 1),
            "most_rss_mb": round(most[0], 1),
            "start_up_cpu_s": round(start_up, 2),
            "findings": found,
            "health": health["verdict"],
            "seconds": round(took, 1),
            "ranks": ranks,
            "lines_per_beat": lines,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--lines", type=int, default=1, help="of log, by each rank with each beat [1]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watch", type=int, metavar="GPUS", help="measure the repeated checks, beside as many GPUs")
    options = parser.parse_args()
    result = measure(options.seconds, options.ranks, options.lines)
    if options.watch is not None:
        watching = measure(options.seconds, options.ranks, options.lines, options.watch)
        result["watch_percent"] = round(watching["cpu_percent"] - result["cpu_percent"], 3)
        result["watch_rss_mb"] = round(watching["most_rss_mb"] - result["most_rss_mb"], 1)
    met = result.get("watch_percent", 0.0) <= WATCH and result["cpu_percent"] <= CPU and result["most_rss_mb"] <= MEMORY
    if options.json:
        print(json.dumps({"schema": 1, "bench": "agent_cost", "cpus": os.cpu_count(), **result, "met": met}))
    else:
        print(
            f"{options.ranks} ranks at 10 beats and {10 * options.lines} log lines a second, {result['seconds']:.0f} s"
        )
        print(f"CPU, share of a core      {result['cpu_percent']:8.2f} %    (target {CPU:g} %)")
        print(f"memory, RSS at most       {result['most_rss_mb']:8.1f} MB   (target {MEMORY:g} MB)")
        print(f"memory, PSS               {result['pss_mb']:8.1f} MB")
        if options.watch is not None:
            print(f"watching, share of a core {result['watch_percent']:8.2f} %    (target {WATCH:g} %)")
            print(f"watching, RSS more        {result['watch_rss_mb']:8.1f} MB")
        print(f"start-up, CPU time        {result['start_up_cpu_s']:8.2f} s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
