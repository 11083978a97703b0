"""Measure how long training stops after a fault: under transom and, in the same sandbox, under other tools.

    python bench/recovery.py [--runs 10] [--only rank-kill,hang] [--elastic 3] [--baseline 1] [--json]

Each run trains the example GPT on 3 of a sandbox's 4 nodes (with Slurm's defaults, such as SlurmdTimeout=300). The
fault comes at a random step between two checkpoints:

    rank-kill          one rank dies
    node-kill          a node dies with everything on it
    node-kill-spare    the same, with the 4th node in the job as a spare; never the node with the batch script
    rank-kill-standby  the same as rank-kill, with `launch.standby`
    rank-kill-stay     the same, with `launch.recoverable`: the other ranks stay; with -standby, both
    rank-kill-script   both, with `launch.standby_reach`: standbys have run the script up to the training
    hang               one rank is stopped; with -stay, only that rank is killed and the other ranks stay

The bench measures the wall time from just before the fault to the first step of the new launch, as the operator sees
it, split by the marks of the incident:

    detect   fault -> first sign            requeue  -> the job waits, without the node, ready to start
    decide   -> diagnosis                   start    -> the launcher has started the ranks
    isolate  -> node drained or excluded    resume   -> first new step (import, join, build, restore, step)

A fault that the launcher handles inside the allocation has no requeue. `beyond` is the total time without the trainer's
own start-up (import, join), which every start needs. For a hang, the time to the launcher's finding is shown too. Every
run's final state is compared with that of one uninterrupted run, by a hash over all parameters and optimizer tensors.

Other tools: `torchrun --max-restarts` and NVIDIA's ft_launcher take turns with transom's runs in the same sandbox (see
bench/elastic.py), followed by `sbatch --requeue` (see bench/plain.py). ft_launcher is loaded from --nvrx DIR, or from
the interpreter's own path: pip install --no-deps --target DIR nvidia-resiliency-ext defusedxml pyyaml.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import elastic
import plain
from cases import CASES, Case, one_run, skipped
from harness import Bench, BenchError, Training, progress, reference, run_bench, surroundings
from injury import random_step
from recovery_table import Beside, ratios, summaries, table, targets


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="under transom, for each case [10]")
    parser.add_argument("--only", default=",".join(CASES), metavar="CASE,CASE", help="some of the cases [all]")
    parser.add_argument("--elastic", type=int, default=3, metavar="N", help="jobs under each other launcher [3]")
    parser.add_argument("--elastic-timeout", type=float, default=90.0, metavar="S", help="for each of them [90]")
    parser.add_argument("--nvrx", type=Path, metavar="DIR", help="where nvidia-resiliency-ext was installed")
    parser.add_argument("--baseline", type=int, default=1, metavar="N", help="jobs of each kind under Slurm alone [1]")
    parser.add_argument("--baseline-timeout", type=float, default=700.0, metavar="S", help="for each of them [700]")
    parser.add_argument("--steps", type=int, default=80, help="of a training [80]")
    parser.add_argument("--seed", type=int, default=1, help="of steps, nodes and ranks [1]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    args = parser.parse_args()
    args.only = [case for case in args.only.split(",") if case]
    if not args.only or set(args.only) - set(CASES):
        parser.error(f"--only: some of {', '.join(CASES)}")
    return args


def rounds(
    args: argparse.Namespace, cases: list[Case], launchers: list[elastic.Launcher], training: Training
) -> tuple[list[dict[str, Any]], list[elastic.ElasticOutcome], str]:
    """All runs in one sandbox. They take turns, so that a slow minute of the machine meets everybody."""
    rows: list[dict[str, Any]] = []
    others: list[elastic.ElasticOutcome] = []
    with Bench(keep=args.keep) as bench:
        wanted = reference(bench, training).sha256 if args.runs else ""
        for number in range(max(args.runs, args.elastic)):
            if number < args.runs:
                rows += [one_run(bench, case, number, training, args.seed, wanted) for case in cases]
            if number < args.elastic:
                faults = [case.name for case in cases]
                limit = args.elastic_timeout
                others += elastic.turn(bench, launchers, faults, others, number, training, limit, args.seed)
    return rows, others, wanted


def beside(others: list[elastic.ElasticOutcome], alone: list[plain.PlainOutcome]) -> list[Beside]:
    launched = [Beside(o.launcher, o.fault, o.seconds, o.how, o.start_up, o.beyond) for o in others]
    return launched + [Beside(plain.SCRIPTS[p.script], p.fault, p.seconds, p.how, {}, None) for p in alone]


def notes(lines: list[str], others: list[elastic.ElasticOutcome], alone: list[plain.PlainOutcome]) -> str:
    """What the table does not tell of the others."""
    words = [*lines]
    words += [f"{o.launcher}, {o.fault}: {o.words()}" for o in others if o.fault == "hang" or o.seconds is None]
    for p in alone:
        story = ", ".join(f"{words} from {since:.0f} s" for since, words in p.story)
        words.append(f"{plain.SCRIPTS[p.script]}, {p.fault}: {story}")
    return "\n".join(words)


def main() -> int:
    args = arguments()
    training = Training(steps=args.steps)
    random_step(random.Random(0), training)  # refuses a training that is too short, before anything is started
    began = time.time()
    why_not = {case: skipped(CASES[case]) for case in args.only}
    cases = [CASES[case] for case, why in why_not.items() if not why]
    ft_launchers, no_ft = elastic.ft_launchers(args.nvrx)
    launchers = [*elastic.TORCHRUN, *ft_launchers] if args.elastic else []
    missing = [why for why in (*why_not.values(), no_ft) if why]
    for line in missing:
        progress(line)
    rows, others, wanted = rounds(args, cases, launchers, training)
    alone = []
    faults = [case.name for case in cases if case.name in plain.FAULTS]
    if args.baseline and faults:
        step = random_step(random.Random(f"{args.seed}/plain"), training)
        alone = plain.measure_all(faults, training, step, args.baseline, args.baseline_timeout, args.seed)
    good = [row for row in rows if "error" not in row]
    summary, compared = summaries(good), beside(others, alone)
    if args.json:
        print(json.dumps({
            "schema": 2, "bench": "recovery", "unit": "s", "seed": args.seed, "training": vars(training),
            "where": surroundings(), "took": round(time.time() - began), "reference": wanted, "summary": summary,
            "targets": targets(summary), "runs": rows, "elastic": [o.as_json() for o in others],
            "baseline": [p.as_json() for p in alone], "ratio": ratios(summary, compared), "not_measured": missing,
        }))  # fmt: skip
    else:
        print(table(summary, compared, good))
        print("\n" + notes([*missing, *elastic.remarks(launchers)], others, alone))
        print("measured on {cpus} CPUs, load {load}; PyTorch {torch}, {slurm}".format(**surroundings()))
    failed = [f"{row['case']} {row['run'] + 1}: {row['error']}" for row in rows if "error" in row]
    if failed:
        raise BenchError(f"{len(failed)} of {len(rows)} runs did not recover", "\n".join(failed))
    if not all(row["bit_identical"] for row in rows):
        raise BenchError("A run ended in another state than the uninterrupted one")
    return 0


if __name__ == "__main__":
    run_bench(main)
