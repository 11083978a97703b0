"""Check that a run with a fault has the same result as one without, to the last bit, over many runs.

    python bench/identity.py [--runs 20] [--seed 1] [--json]

Each run trains the example GPT under transom on 3 of a sandbox's 4 nodes and gets one random fault at a random step: a
node is killed with everything on it, a rank is killed, or a rank is stopped (and never continued). The final state is
compared with that of one uninterrupted run by a SHA-256 over all parameter and optimizer tensors, with names, shapes
and types. Exit code 1 unless all are equal.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from harness import Bench, BenchError, Result, Training, progress, reference, run_bench, surroundings
from injury import KINDS, injure, random_step, recovery


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="[20]")
    parser.add_argument("--seed", type=int, default=1, help="run n has the seed `<seed>/<n>` [1]")
    parser.add_argument("--only", type=int, metavar="N", help="only run number N of them, to do one again")
    parser.add_argument("--steps", type=int, default=80, help="of a training [80]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    return parser.parse_args()


def one_run(bench: Bench, number: int, seed: int, training: Training, wanted: Result) -> dict[str, Any]:
    """A run that does not end, or does not recover, counts as not equal; the next ones go on."""
    rng = random.Random(f"{seed}/{number}")
    kind, step = rng.choice(KINDS), random_step(rng, training)
    row: dict[str, Any] = {"run": number, "seed": f"{seed}/{number}", "kind": kind, "bit_identical": False}
    try:
        run = bench.train(f"run{number}", training)
        row["dir"] = str(run.dir.path)
        fault = injure(run, kind, rng, step)
        row |= {"target": fault.target, "batch_host": fault.batch_host, "step": fault.step}
        result = run.wait_done()
        row |= {"sha256": result.sha256, "bit_identical": result == wanted}
        found = recovery(run, fault)
        row |= {"seconds": found.total, "resumed_from": found.resumed_from, "incidents": found.incidents}
    except BenchError as error:
        row |= {"bit_identical": False, "error": f"{error.what}: {error.why}" if error.why else error.what}
    bench.heal()
    return row


def line(row: dict[str, Any]) -> str:
    where = f"{row['kind']} of {row.get('target', '?')} after step {row.get('step', '?')}"
    if "error" in row:
        return f"run {row['run']:>3} (seed {row['seed']}): {where}: {row['error']}"
    verdict = "bit-identical" if row["bit_identical"] else "DIFFERENT"
    resumed = f"resumed from {row['resumed_from']}, first new step after {row['seconds']:.1f} s"
    return f"run {row['run']:>3} (seed {row['seed']}): {where}: {resumed}: {verdict}"


def main() -> int:
    args = arguments()
    training = Training(steps=args.steps)
    random_step(random.Random(0), training)  # refuses a training that is too short, before anything is started
    numbers = [args.only] if args.only is not None else list(range(1, args.runs + 1))
    began = time.time()
    rows = []
    with Bench(keep=args.keep) as bench:
        wanted = reference(bench, training)
        for number in numbers:
            row = one_run(bench, number, args.seed, training, wanted)
            rows.append(row)
            progress(line(row))
        equal = sum(row["bit_identical"] for row in rows)
        if args.json:
            print(json.dumps({
                "schema": 1, "bench": "identity", "seed": args.seed, "training": vars(training),
                "where": surroundings(), "took": round(time.time() - began), "reference": vars(wanted),
                "equal": equal, "of": len(rows), "runs": rows,
            }))  # fmt: skip
        else:
            print("\n".join(line(row) for row in rows))
            print(f"\nuninterrupted: sha256 {wanted.sha256} over {wanted.tensors} tensors")
            print(f"bit-identical to it: {equal} of {len(rows)}")
        if equal != len(rows):
            raise BenchError(f"{len(rows) - equal} of {len(rows)} runs did not end in the uninterrupted run's state")
    return 0


if __name__ == "__main__":
    run_bench(main)
