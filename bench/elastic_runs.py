"""Random elastic runs on the sandbox: are all samples used exactly once, and is the final state that of a calm run?

    python bench/elastic_runs.py [--runs 50] [--first 0] [--at-once 1] [--campaign] [--out FILE]

Each run trains examples/elastic/train.py on 2 to 4 of 6 nodes. A seed decides its faults: nodes that die and may come
back, ranks that are killed, top-up jobs that are cancelled, requeues. Every loss and the digest must be those of one
undisturbed process, bit for bit, and `transom explain --samples` must prove every sample. One JSON line per run is
appended to FILE; seeds that it has already are left out, so an interrupted campaign continues.

--campaign: each run is one of 48 hours in minutes. It has 30 faults, with exponentially distributed gaps, so that some
hit a run that still recovers from the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Bench, LiveRun, progress, run_bench

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "elastic" / "train.py"
BATCH = 48
KINDS = {"node-kill": 3, "node-back": 2, "rank-kill": 2, "top-up-cancel": 1, "requeue": 1}
PATIENCE = 420.0
_FINAL = re.compile(r"final state ([0-9a-f]{64})")
_LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Scale:
    """faults: at least and at most. delay: seconds per step."""

    steps: int
    faults: tuple[int, int]
    delay: float

    def times(self, rng: random.Random) -> list[int]:
        """The steps at which faults happen."""
        number = rng.randint(*self.faults)
        gaps = [rng.expovariate(1) for _ in range(number + 1)]
        inside = [sum(gaps[: n + 1]) / sum(gaps) for n in range(number)]
        return [round(8 + (self.steps - 18) * part) for part in inside]


RUN, CAMPAIGN = Scale(120, (2, 4), 0.25), Scale(1500, (30, 30), 0.15)


@dataclass(frozen=True)
class Result:
    """losses: the values that rank 0 printed for each step."""

    digests: list[str]
    losses: dict[int, set[str]]

    @classmethod
    def read(cls, texts: list[str]) -> Result:
        losses: dict[int, set[str]] = {}
        for step, loss in (found for text in texts for found in _LOSS.findall(text)):
            losses.setdefault(int(step), set()).add(loss)
        return cls([digest for text in texts for digest in _FINAL.findall(text)][-1:], losses)


def undisturbed(python: str, scale: Scale) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        env["TRANSOM_CHECKPOINT_DIR"] = folder
        argv = [python, str(EXAMPLE), "--steps", str(scale.steps), "--check"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return Result.read([done.stdout])


def start(bench: Bench, name: str, scale: Scale) -> LiveRun:
    ask = ["--root", str(bench.runs), "--name", name, "-N", "2-4", "--set", "health.preflight=off"]
    ask += ["--set", "isolate.max_nodes=30"]  # of an hour, which here holds the faults of days
    train = [bench.python, str(EXAMPLE), "--steps", str(scale.steps), "--delay", str(scale.delay), "--check"]
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


def one(bench: Bench, seed: int, scale: Scale, reference: Result) -> dict[str, Any]:
    rng, began = random.Random(seed), time.monotonic()
    run, done, dead = start(bench, f"elastic-{seed}", scale), [], []
    for at in scale.times(rng):
        order = sorted(KINDS, key=lambda kind: rng.expovariate(KINDS[kind]))
        try:
            run.wait_step(at, PATIENCE)
            kind, what = next((kind, what) for kind in order if (what := injure(bench, run, kind, rng, dead)))
            done.append(f"{kind} {what} at {at}")
        except Exception as error:  # the fault came too late, or hit nothing: the run is judged all the same
            done.append(f"at {at}: {error}"[:150])
    view = run.wait_over(PATIENCE)
    logs = sorted(run.dir.attempts.glob("*/logs/*/rank-0.log"), key=lambda path: path.stat().st_mtime)
    result = Result.read([log.read_text() for log in logs])
    proof = json.loads(
        bench.transom("explain", "--root", str(bench.runs), run.name, "--samples", "--json", timeout_s=240.0)
    )["samples"]
    exact = proof["exact"] and proof["used"] == scale.steps * BATCH
    wrong = [step for step in range(1, scale.steps + 1) if result.losses.get(step) != reference.losses[step]]
    return {
        "seed": seed, "faults": done, "phase": view.phase, "nodes": launches(run),
        "starts": len(list(run.dir.attempts.iterdir())),
        "bitwise": result.digests == reference.digests, "other_losses": len(wrong),
        "exact": exact, "samples": proof["used"],
        "undone": sum(x["end"] - x["start"] for x in proof["undone"]), "seconds": round(time.monotonic() - began),
        "good": view.phase == "done" and result.digests == reference.digests and not wrong and exact,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--at-once", type=int, default=1, help="sandboxes")
    parser.add_argument("--campaign", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("elastic_runs.jsonl"))
    args = parser.parse_args()
    scale = CAMPAIGN if args.campaign else RUN
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {one["seed"] for one in known}
    seeds = iter([n for n in range(args.first, args.first + args.runs) if n not in done])
    lock = threading.Lock()

    def work(_: int) -> None:
        with Bench(nodes=6) as bench:
            while (seed := next(seeds, None)) is not None:
                try:
                    found = one(bench, seed, scale, reference)
                except Exception as error:  # a command that takes too long: the next runs say more
                    found = {"seed": seed, "good": False, "error": str(error)[:300]}
                bench.keep = bench.keep or not found["good"]
                bench.heal()
                progress(json.dumps(found))
                with lock, args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                    known.append(found)

    reference = undisturbed(sys.executable, scale)
    with ThreadPoolExecutor(args.at_once) as workers:
        try:
            list(workers.map(work, range(args.at_once)))
        finally:
            list(seeds)  # if interrupted: end after the runs under way
    good = [one for one in known if one["good"]]
    sizes = [one.get("nodes", []) for one in known]
    shrinks = sum(b < a for one in sizes for a, b in pairwise(one))
    grows = sum(b > a for one in sizes for a, b in pairwise(one))
    print(f"{len(good)} of {len(known)} runs: every sample once, and the bits and losses of an undisturbed training")
    print(f"{sum(len(one.get('faults', [])) for one in known)} faults, {sum(map(len, sizes))} launches,")
    print(f"{shrinks} with fewer nodes than before and {grows} with more")
    for bad in (one for one in known if not one["good"]):
        print(f"not good: {bad}")
    return 0 if len(good) == len(known) else 1


if __name__ == "__main__":
    run_bench(main)
