"""Random elastic runs on the sandbox: are all samples used exactly once, and is the final state that of a calm run?

    python bench/elastic_runs.py [--runs 50] [--first 0] [--out FILE]

Each run trains examples/elastic/train.py on 2 to 4 of 6 nodes. A seed decides its faults: nodes that die and may come
back, ranks that are killed, top-up jobs that are cancelled, requeues. Its digest must be that of one undisturbed
process, and `transom explain --samples` must prove every sample. One JSON line per run is appended to FILE; seeds that
it has already are left out, so an interrupted campaign continues.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Bench, LiveRun, progress, run_bench

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "elastic" / "train.py"
STEPS, BATCH, DELAY = 120, 48, 0.25
KINDS = ("node-kill", "node-kill", "node-kill", "node-back", "rank-kill", "top-up-cancel", "requeue")
PATIENCE = 420.0
_FINAL = re.compile(r"final state ([0-9a-f]{64})")


def undisturbed(python: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        env["TRANSOM_CHECKPOINT_DIR"] = folder
        argv = [python, str(EXAMPLE), "--steps", str(STEPS), "--check"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return _FINAL.findall(done.stdout)[0]


def start(bench: Bench, name: str) -> LiveRun:
    ask = ["--root", str(bench.runs), "--name", name, "-N", "2-4", "--set", "health.preflight=off"]
    train = [bench.python, str(EXAMPLE), "--steps", str(STEPS), "--delay", str(DELAY), "--check"]
    run = LiveRun(
        bench,
        RunDir(bench.runs / bench.transom("run", *ask, "--detach", "--", *train, timeout_s=240.0)),
        bench.results / name,
    )
    bench._made.append(run)
    return run


def launches(run: LiveRun) -> list[int]:
    """The number of nodes of each launch."""
    found = []
    for journal in sorted(run.dir.attempts.glob("*/launcher.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in journal.read_text().splitlines():
            record = json.loads(line)
            if record.get("type") == "launch":
                found.append(len(record["nodes"]))
    return found


def injure(bench: Bench, run: LiveRun, kind: str, rng: random.Random, dead: list[str]) -> str:
    """Do it, or return "" if it is not possible now."""
    jobs = [job for job in bench.slurm.jobs() if not job.state.ended and job.nodes]
    main = next((job for job in jobs if job.comment.startswith("transom:")), None)
    if kind == "node-back" and dead:
        node = dead.pop(0)
        faults.restore_node(bench.sandbox, node, undrain=True)
        return node
    if kind == "node-kill" and main is not None:
        every = {node for job in jobs for node in job.nodes} - {main.batch_host, *dead}
        if every and len(dead) < 3:
            node = rng.choice(sorted(every))
            faults.kill_node(bench.sandbox, node)
            dead.append(node)
            return node
    if kind == "rank-kill" and main is not None:
        faults.kill_rank(bench.sandbox, main.job_id, 0)
        return "rank 0"
    if kind == "top-up-cancel":
        for job in jobs:
            if job.comment.startswith("transom-top-up:"):
                bench.slurm.cancel(job.job_id)
                return str(job.job_id)
    if kind == "requeue" and main is not None and not dead:
        bench.transom("requeue", "--root", str(bench.runs), run.name)
        return str(main.job_id)
    return ""


def one(bench: Bench, seed: int, reference: str) -> dict[str, Any]:
    rng, began = random.Random(seed), time.monotonic()
    run, done, dead = start(bench, f"elastic-{seed}"), [], []
    for at in sorted(rng.sample(range(8, STEPS - 10), rng.randint(2, 4))):
        kind = rng.choice(KINDS)
        try:
            run.wait_step(at, PATIENCE)
            if what := injure(bench, run, kind, rng, dead):
                done.append(f"{kind} {what} at {at}")
        except Exception as error:  # the fault came too late, or hit nothing: the run is judged all the same
            done.append(f"{kind}: {error}")
    view = run.wait_over(PATIENCE)
    logs = sorted(run.dir.attempts.glob("*/logs/*/rank-0.log"), key=lambda path: path.stat().st_mtime)
    digests = [digest for log in logs for digest in _FINAL.findall(log.read_text())]
    proof = json.loads(
        bench.transom("explain", "--root", str(bench.runs), run.name, "--samples", "--json", timeout_s=240.0)
    )["samples"]
    bitwise, exact = digests[-1:] == [reference], proof["exact"] and proof["used"] == STEPS * BATCH
    return {
        "seed": seed, "faults": done, "phase": view.phase, "nodes": launches(run),
        "starts": len(list(run.dir.attempts.iterdir())),
        "bitwise": bitwise, "exact": exact, "samples": proof["used"],
        "undone": sum(x["end"] - x["start"] for x in proof["undone"]), "seconds": round(time.monotonic() - began),
        "good": view.phase == "done" and bitwise and exact,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("elastic_runs.jsonl"))
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    seeds = [n for n in range(args.first, args.first + args.runs) if n not in {one["seed"] for one in known}]
    if seeds:
        with Bench(nodes=6) as bench:
            reference = undisturbed(bench.python)
            for seed in seeds:
                try:
                    found = one(bench, seed, reference)
                except Exception as error:  # a command that takes too long: the next runs say more
                    found = {"seed": seed, "good": False, "error": str(error)[:300]}
                bench.heal()
                progress(json.dumps(found))
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                known.append(found)
    good = [one for one in known if one["good"]]
    sizes = [one.get("nodes", []) for one in known]
    shrinks = sum(b < a for one in sizes for a, b in pairwise(one))
    grows = sum(b > a for one in sizes for a, b in pairwise(one))
    print(f"{len(good)} of {len(known)} runs: every sample once, and the bits of an undisturbed training")
    print(f"{sum(map(len, sizes))} launches, {shrinks} with fewer nodes than before and {grows} with more")
    for bad in (one for one in known if not one["good"]):
        print(f"not good: {bad}")
    return 0 if len(good) == len(known) else 1


if __name__ == "__main__":
    run_bench(main)
