"""How long a training stands still after a fault: under transom, and beside it under Slurm alone.

    python bench/recovery.py [--runs 10] [--faults node-kill,rank-kill] [--baseline 1] [--json]

Each run trains the example GPT on 3 of a sandbox's 4 nodes (Slurm's own defaults, SlurmdTimeout=300 among them). At a
random step between two checkpoints a node with everything on it, or one rank, is killed. Measured is the wall time from
just before the fault to the first step of the new launch as the operator saw it, split by the marks of the incident:

    detect   fault -> first sign            requeue  -> the job waits, without the node, free to start
    decide   -> diagnosis                   start    -> the launcher has started the ranks
    isolate  -> node drained or excluded    resume   -> first new step (import, join, build, restore, step)

A fault that the launcher mends inside the allocation knows no requeue. `beyond` is the whole time less the trainer's
own start-up (import, join), which every start pays.

Every run's final state is compared with that of one uninterrupted run, by a hash over all parameters and optimizer
tensors. Against it, in the same call: the same training and fault under `sbatch --requeue` alone, see bench/plain.py.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from harness import Bench, BenchError, Training, progress, reference, run_bench, surroundings
from injury import PHASES, Fault, Recovery, injure, random_step, recovery, summary
from plain import PlainOutcome, measure_all

KNOWN = ("node-kill", "rank-kill")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="for each fault [10]")
    parser.add_argument("--faults", default=",".join(KNOWN), help=f"some of {', '.join(KNOWN)} [all]")
    parser.add_argument("--baseline", type=int, default=1, metavar="N", help="jobs of each kind under Slurm alone [1]")
    parser.add_argument("--baseline-timeout", type=float, default=700.0, metavar="S", help="for each of them [700]")
    parser.add_argument("--steps", type=int, default=80, help="of a training [80]")
    parser.add_argument("--seed", type=int, default=1, help="of steps, nodes and ranks [1]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    asked = parser.parse_args()
    asked.faults = [fault for fault in asked.faults.split(",") if fault]
    if not asked.faults or set(asked.faults) - set(KNOWN):
        parser.error(f"--faults: some of {', '.join(KNOWN)}")
    return asked


def one_run(bench: Bench, kind: str, number: int, training: Training, seed: int) -> tuple[Fault, Recovery, str]:
    """The fault, how it was recovered from, and the hash of the final state."""
    rng = random.Random(f"{seed}/{kind}/{number}")
    step = random_step(rng, training)
    run = bench.train(f"{kind}-{number}", training)
    fault = injure(run, kind, rng, step)
    result = run.wait_done()
    found = recovery(run, fault)
    bench.heal()
    return fault, found, result.sha256


def under_transom(asked: argparse.Namespace, training: Training) -> tuple[list[dict[str, Any]], str]:
    rows = []
    with Bench(keep=asked.keep) as bench:
        wanted = reference(bench, training).sha256
        for number in range(asked.runs):
            for kind in asked.faults:  # taking turns, so that a slow minute of the machine meets both
                fault, found, sha256 = one_run(bench, kind, number, training, asked.seed)
                equal = sha256 == wanted
                rows.append({**vars(fault), **found.as_json(), "bit_identical": equal})
                progress(
                    f"{number + 1}/{asked.runs} {kind} of {fault.target} at step {fault.step}: first new step after "
                    f"{found.total:.1f} s, {'bit-identical' if equal else 'DIFFERENT RESULT'}"
                )
    return rows, wanted


def summaries(rows: list[dict[str, Any]], kinds: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind in kinds:
        groups = {kind: [r for r in rows if r["kind"] == kind]}
        if kind == "node-kill":
            groups["of these, batch host"] = [r for r in groups[kind] if r["batch_host"]]
            groups["of these, others"] = [r for r in groups[kind] if not r["batch_host"]]
        for name, group in groups.items():
            if group:
                columns = {column: summary([r[column] for r in group]) for column in ("total", *PHASES, "beyond")}
                told[name] = {"runs": len(group), **columns, "start_up": _start_up(group)}
    return told


def _start_up(group: list[dict[str, Any]]) -> dict[str, float]:
    """Medians of what the ranks say of themselves; they lie within `resume`."""
    parts = [r["start_up"] for r in group if r["start_up"]]
    return {key: round(statistics.median(p[key] for p in parts), 2) for key in parts[0]} if parts else {}


def ratios(told: dict[str, Any], plain: list[PlainOutcome]) -> list[dict[str, Any]]:
    """How many times longer it took under Slurm alone; None: never."""
    rows = []
    for key in dict.fromkeys((p.script, p.fault) for p in plain):
        these = [p for p in plain if (p.script, p.fault) == key]
        back = [p.seconds for p in these if p.seconds is not None]
        times = round(statistics.median(back) / told[key[1]]["total"]["median"], 1) if len(back) == len(these) else None
        rows.append({"script": key[0], "fault": key[1], "jobs": len(these), "back": len(back), "ratio": times})
    return rows


def _title(name: str, group: dict[str, Any]) -> str:
    return f"{name} ({group['runs']} run{'s' if group['runs'] > 1 else ''})"


def table(told: dict[str, Any], plain: list[PlainOutcome], rows: list[dict[str, Any]]) -> str:
    lines = ["seconds from the fault to the first new step: median (min to max)", ""]
    lines.append(" " * 10 + "".join(f"{_title(name, group):<34}" for name, group in told.items()).rstrip())
    for column in ("total", *PHASES, "beyond"):
        cells = [group[column] for group in told.values()]
        spans = [f"{c['median']:.1f} ({c['min']:.1f} to {c['max']:.1f})" for c in cells]
        lines.append(f"{column:<10}" + "".join(f"{span:<34}" for span in spans).rstrip())
    for name, group in told.items():
        if group["start_up"]:
            parts = [f"{part} {seconds:.2f}" for part, seconds in group["start_up"].items()]
            lines.append(f"of which, by the ranks' own account (medians), {name}: {', '.join(parts)}")
    equal = sum(r["bit_identical"] for r in rows)
    lines += ["", f"final state bit-identical to the uninterrupted run: {equal} of {len(rows)}"]
    if plain:
        lines += ["", "the same training and fault under Slurm alone (requeue: sbatch --requeue; idiom: and the script"]
        lines += ["calls `scontrol requeue` when srun fails):", ""]
        by_key = {(r["script"], r["fault"]): r["ratio"] for r in ratios(told, plain)}
        for p in plain:
            ratio = by_key[p.script, p.fault]
            times = f", {ratio:g} times transom's median" if p.seconds is not None and ratio else ""
            lines.append(
                f"  {p.script:<9}{p.fault:<11}{f'{p.seconds:.0f} s' if p.seconds is not None else p.how}{times}"
            )
            lines.append(" " * 22 + ", ".join(f"{words} from {since:.0f} s" for since, words in p.story))
    return "\n".join(lines)


def main() -> int:
    asked = arguments()
    training = Training(steps=asked.steps)
    random_step(random.Random(0), training)  # refuses a training that is too short, before anything is started
    began = time.time()
    rows, wanted = under_transom(asked, training)
    plain = []
    if asked.baseline:
        step = random_step(random.Random(f"{asked.seed}/plain"), training)
        plain = measure_all(asked.faults, training, step, asked.baseline, asked.baseline_timeout, asked.seed)
    told = summaries(rows, asked.faults)
    if asked.json:
        print(json.dumps({
            "schema": 1, "bench": "recovery", "unit": "s", "seed": asked.seed, "training": vars(training),
            "where": surroundings(), "took": round(time.time() - began), "reference": wanted, "summary": told,
            "runs": rows, "baseline": [p.as_json() for p in plain], "ratio": ratios(told, plain),
        }))  # fmt: skip
    else:
        print(table(told, plain, rows))
    if not all(r["bit_identical"] for r in rows):
        raise BenchError("A run ended in another state than the uninterrupted one")
    return 0


if __name__ == "__main__":
    run_bench(main)
