"""Count the operations of a node on the shared file system: its agent and eight ranks in the run directory.

    python bench/agent_files.py [--seconds 60] [--ranks 8] [--nodes 1] [--alone] [--json]

The agent and the ranks of bench/agent_cost.py run under strace (their CPU times mean nothing then). The bench counts
each system call that names a path in the run directory or a file open in it: lookups, opens, reads, writes, closes,
renames, flushes. The ranks' own logs, which grow with each line, are counted separately. With --nodes N, the run
directory has files of N nodes; the count must not grow with N.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import agent_cost

from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.rpc import secret
from transom_cli.supervise.launcher.heartbeat_stream import HeartbeatStream

_CALL = re.compile(r"^(?:\d+ +)?(?:[\d.]+ )?(\w+)\(")
_STUB = re.compile(r"/attempts/(gpus|nvml)")  # what the stand-in for NVIDIA's library reads
SETTLE = 5.0  # seconds until all are up
GPUS = 8


def counted(lines: list[str], where: str) -> tuple[collections.Counter[str], int]:
    """Calls by name on what is in `where`, and how many more there are on the ranks' logs."""
    calls: collections.Counter[str] = collections.Counter()
    logs = 0
    for line in lines:
        found = _CALL.match(line)
        if found is None or where not in line or _STUB.search(line):
            continue
        if "/logs/" in line:
            logs += 1
        else:
            calls[found[1]] += 1
    return calls, logs


def _others(attempt: AttemptDir, nodes: int, ranks: int) -> None:
    """What the other nodes of the run have written."""
    attempt.peers.write_text(json.dumps({"allowed": ["127.0.0.1"] * nodes, "nodes": {}}))
    for n in range(1, nodes):
        beats = tuple(RankBeat(n * ranks + r, 0, 5, 5, 0.3, 1.83, "step", 4000 + r, "R") for r in range(ranks))
        (attempt.nodes / f"other{n}.beats").write_bytes(encode(NodeTable(f"other{n}", attempt.name, 9, beats)))
        attempt.endpoint(f"other{n}").write_text('{"host": "127.0.0.1", "port": 1}\n')
        for r in range(ranks):
            (attempt.logs(0) / f"rank-{n * ranks + r}.log").write_text("a line\n")


def _fetch(attempt: AttemptDir, key: bytes) -> HeartbeatStream:
    """The launcher's connection to the agent, read as its loop does."""

    def where(node: str) -> tuple[str, int] | None:
        with contextlib.suppress(OSError):
            return "127.0.0.1", int(json.loads(attempt.endpoint(node).read_text())["port"])
        return None

    return HeartbeatStream([agent_cost.NODE], attempt.name, key, where)


def measured(seconds: float, ranks: int, nodes: int = 1, *, alone: bool = False) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="tfiles-") as name:
        shared, local = Path(name) / "shared", Path(name) / "local"
        shared.mkdir()
        local.mkdir()
        run = RunDir(shared)
        attempt = run.attempt(1, 0)
        attempt.logs(0).mkdir(parents=True)
        secret.make(run.secret)
        attempt.nodes.mkdir(parents=True)
        _others(attempt, nodes, ranks)
        trace = local / "trace"
        agent, wrappers = agent_cost.start(attempt, local / "beats", ranks, 1, GPUS)
        words = ["strace", "-f", "-y", "-ttt", "-s", "200", "-e", "trace=%file,%desc", "-o", str(trace)]
        for process in (agent, *wrappers):
            words += ["-p", str(process.pid)]
        tracer = agent_cost.subprocess.Popen(words, stderr=agent_cost.subprocess.DEVNULL)
        stream = None if alone else _fetch(attempt, secret.read(run.secret))
        try:
            _wait(SETTLE, stream)
            began = time.time()
            _wait(seconds, stream)
            took = time.time() - began
        finally:
            if stream is not None:
                stream.stop(0.0)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20)
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
            for wrapper in wrappers:
                wrapper.kill()
                wrapper.wait()
        told = [line for line in trace.read_text(errors="replace").splitlines() if _since(line) >= began]
        calls, logs = counted(told, str(shared))
        rate = {call: round(count / took, 2) for call, count in calls.most_common()}
        return {"seconds": took, "a_second": sum(calls.values()) / took, "by_call": rate, "logs_a_second": logs / took}


def _wait(seconds: float, stream: HeartbeatStream | None) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.25)
        if stream is not None:
            stream.take()
            stream.consumed()


def _since(line: str) -> float:
    """When a line of strace's was, as it tells it."""
    parts = line.split(maxsplit=2)
    try:
        return float(parts[1])
    except (IndexError, ValueError):
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="no launcher fetches the heartbeat tables")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("error: strace is not here\n\nhint: apt-get install strace")
    told = measured(asked.seconds, asked.ranks, asked.nodes, alone=asked.alone)
    if asked.json:
        print(json.dumps(told))
        return
    print(f"{told['a_second']:.1f} operations a second on the run directory, by an agent and {asked.ranks} ranks:")
    print(", ".join(f"{call} {rate}" for call, rate in told["by_call"].items()))  # type: ignore[attr-defined]
    print(f"and on the ranks' logs, of ten lines a second each: {told['logs_a_second']:.1f}")


if __name__ == "__main__":
    main()
