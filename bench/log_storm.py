#!/usr/bin/env python
"""Measure how long logs full of warnings delay a diagnosis, and whether the cause among them is found.

    python bench/log_storm.py [--mb 1] [--logs 8] [--nodes 1024] [--seed 0] [--plain] [--json]

One row per kind of storm and place of the cause: the logs of one node's ranks hold warnings only, and one log also
holds an exception at the beginning, in the middle or at the end. node: seconds that the node's agent needs to read
them. merge: seconds that the launcher needs for the answers of all nodes. Both also in CPU seconds, which other load on
the machine does not change. cause: what was found.
--plain searches without RE2, as an agent does in a container that has none.

The exit code is 1 if a wrong cause was found, or, with RE2, if the CPU seconds exceed the budgets: 2 for eight logs of
1 MB, 1 for the answers of 1,024 nodes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transom_cli.diagnose.logs import rulebook as rules
from transom_cli.layout import RunDir
from transom_cli.supervise.agent import logs as agent
from transom_cli.supervise.root_cause import examine

CAUSE = (
    'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    main()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB\n"
)
WANTED = "cuda_oom"
NODE, MERGE = 2.0, 1.0  # budgets: CPU seconds
PLACES = ("none", "beginning", "middle", "end")
Writer = Callable[[random.Random, int, int], str]


def _same(rng: random.Random, rank: int, n: int) -> str:
    return f"n1:4711:4799 [{rank}] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration\n"


def _numbers(rng: random.Random, rank: int, n: int) -> str:
    peer = f"10.0.{rng.randrange(256)}.{rng.randrange(256)}<{rng.randrange(65536)}>"
    address = f"local GID fe80::{rng.randrange(65536):x}:{rng.randrange(65536):x} wr_id 0x{rng.randrange(1 << 48):x}"
    return (
        f"n1:{4711 + rank}:4799 [{rank}] transport/net_ib.cc:1295 NCCL WARN NET/IB : recvValue failed from peer {peer} "
        f"status={rng.randrange(30)} opcode={rng.randrange(256)} len={rng.randrange(1 << 20)}: Connection timed out, "
        f"{address}\n"
    )


def _dated(rng: random.Random, rank: int, n: int) -> str:
    clock = f"{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}.{rng.randrange(1000000):06}"
    return (
        f"[rank{rank}]:[W1103 {clock} TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd={rng.randrange(999)}, "
        f"addr=[n{rng.randrange(999)}]:{rng.randrange(65536)}): Connection reset by peer\n"
    )


def _mixed(rng: random.Random, rank: int, n: int) -> str:
    return rng.choice((_same, _numbers, _dated, _watchdog))(rng, rank, n)


def _watchdog(rng: random.Random, rank: int, n: int) -> str:
    return (
        f"[rank{rank}]:[W1103 08:11:{n % 60:02} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600043 ms\n"
    )


def _traces(rng: random.Random, rank: int, n: int) -> str:
    return (
        f'WARNING:root:sample {n} skipped\nTraceback (most recent call last):\n  File "/app/data.py", line '
        f"{rng.randrange(99)}, in __getitem__\n    return self.read(n)\nUserWarning: bad sample {n} (skipped)\n"
        "INFO:root:reading on\n" * 6
    )


STORMS: dict[str, Writer] = {
    "identical": _same,
    "numbers": _numbers,
    "dated": _dated,
    "mixed": _mixed,
    "tracebacks": _traces,
}


def storm(kind: str, rank: int, size: float, seed: int) -> bytes:
    rng, lines, written, n = random.Random(seed * 1000 + rank), [], 0, 0
    while written < size:
        lines.append(STORMS[kind](rng, rank, n).encode())
        written, n = written + len(lines[-1]), n + 1
    return b"".join(lines)


def write_logs(folder: Path, kind: str, place: str, logs: int, size: float, seed: int) -> list[str]:
    for rank in range(logs):
        data = storm(kind, rank, size, seed)
        if rank == logs // 2 and place != "none":
            at = {"beginning": 0, "middle": len(data) // 2, "end": len(data)}[place]
            at = data.rfind(b"\n", 0, at) + 1
            data = data[:at] + CAUSE.encode() + data[at:]
        (folder / f"rank-{rank}.log").write_bytes(data)
    return [f"rank-{rank}.log" for rank in range(logs)]


def others(answer: dict[str, Any], node: int, logs: int) -> dict[str, Any]:
    """Return the answer as the agent of another node would give it: the same warnings of its own ranks."""
    text = json.dumps(answer)
    for rank in range(logs):
        text = text.replace(f"rank-{rank}.log", f"rank-{node * logs + rank}.log")
        text = text.replace(f'"rank": {rank},', f'"rank": {node * logs + rank},')
    told: dict[str, Any] = json.loads(text)
    return told


def measure(kind: str, place: str, asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="storm-") as name:
        run = RunDir(Path(name))
        attempt = run.attempt(7, 0)
        folder = attempt.logs(0)
        folder.mkdir(parents=True)
        names = write_logs(folder, kind, place, asked.logs, asked.mb * 1e6, asked.seed)
        began, busy = time.perf_counter(), time.process_time()
        answer, _ = agent.read_cause(folder, names)
        node, busy = time.perf_counter() - began, time.process_time() - busy
        for log in names:
            (folder / log).unlink()
        quiet = answer
        if place != "none" and asked.nodes > 1:
            (folder / "storm").mkdir()
            quiet, _ = agent.read_cause(
                folder / "storm",
                write_logs(folder / "storm", kind, "none", asked.logs, min(asked.mb * 1e6, 1e5), asked.seed),
            )
        answers = [answer, *(others(quiet, n, asked.logs) for n in range(1, asked.nodes))]
        size = len(json.dumps(answers))
        began, merging = time.perf_counter(), time.process_time()
        found = examine("", run, attempt, None, 0.0, answers)
        merge, merging = time.perf_counter() - began, time.process_time() - merging
    return {
        "storm": kind,
        "cause at": place,
        "node s": round(node, 2),
        "its CPU s": round(busy, 2),
        "merge s": round(merge, 2),
        "merge CPU s": round(merging, 2),
        "left out MB": round(sum(answer.get("left_out", {}).values()) / 1e6, 1),
        "answers MB": round(size / 1e6, 1),
        "cause": found.category,
        "right": place == "none" or found.category == WANTED,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1.0, help="of each log [1]")
    parser.add_argument("--logs", type=int, default=8, help="of a node [8]")
    parser.add_argument("--nodes", type=int, default=1024, help="whose answers are merged [1024]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(STORMS), help="kinds of storms")
    parser.add_argument("--places", default=",".join(PLACES), help="of the cause")
    parser.add_argument("--plain", action="store_true", help="search without RE2")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    asked = parser.parse_args()
    if asked.plain:
        rules.FAST = False
        agent.rulebook.cache_clear()
    agent.rulebook()  # an agent has loaded its rules before
    rows = []
    for kind in asked.only.split(","):
        for place in asked.places.split(","):
            row = measure(kind, place, asked)
            if not rows and not asked.json:
                print("  ".join(f"{name:>10}" for name in row))
            rows.append(row)
            print(json.dumps(row) if asked.json else "  ".join(f"{value!s:>10}" for value in row.values()), flush=True)
    slow = [row for row in rows if row["its CPU s"] > NODE or row["merge CPU s"] > MERGE]
    if slow and not asked.plain:
        print(f"EXCEEDED in {len(slow)} of {len(rows)} rows: {NODE:g} s for a node, {MERGE:g} s for the merge")
        return 1
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
