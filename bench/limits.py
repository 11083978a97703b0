"""Check that a training over many time limits is one run with an unchanged result.

    python bench/limits.py [--limits 10] [--minutes 2] [--json]

The example GPT trains under transom on 3 nodes with a time limit of a few minutes per attempt. Slurm warns the launcher
before each limit (`job.signal_before`), all ranks save at one step, the attempt ends, and the job is requeued, until
the training is done. The final state is compared, bit for bit, with that of one uninterrupted run. For each attempt the
bench prints how many seconds it trained, how many steps were repeated, and the pause between two attempts. Exit code 1
unless the run passed at least `--limits` time limits with an equal result, lost no step, and had no other incident.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from harness import Bench, BenchError, LiveRun, Training, progress, reference, run_bench, surroundings

from transom_cli.core import events as ev
from transom_cli.core.operator.state import State
from transom_cli.supervise.journal import fold, read_events

STEP = 1.2  # seconds that are added to each step, so that some dozens of them fill a limit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=10, help="at least so many time limits [10]")
    parser.add_argument("--minutes", type=int, default=2, help="time limit of an attempt [2]")
    parser.add_argument("--before", type=int, default=30, help="seconds before it at which Slurm warns [30]")
    parser.add_argument("--steps", type=int, default=600, help="of the training [600]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the run's files")
    return parser.parse_args()


@dataclass(frozen=True)
class Attempt:
    """left_at: the step that was durable when it was left; -1: it was the last one. again: steps done twice."""

    name: str
    first_step: int
    last_step: int
    left_at: int
    trained_for: float
    stood_still: float  # seconds from the end of the attempt before to the first step of this one
    again: int


def attempts(events: tuple[ev.Event, ...]) -> list[Attempt]:
    """Return what the operator's journal contains about each attempt, in order."""
    found: list[Attempt] = []
    ended, before = 0.0, -1
    firsts: dict[str, tuple[float, int]] = {}
    lasts: dict[str, tuple[float, int]] = {}
    for event in events:
        if isinstance(event, ev.StepSeen):
            firsts.setdefault(event.attempt, (event.at, event.step))
            lasts[event.attempt] = (event.at, event.step)
        if isinstance(event, ev.OutcomeSeen) and event.attempt in firsts:
            began, first = firsts[event.attempt]
            last = lasts[event.attempt][1]
            left = event.durable if event.status == "left" else -1
            still = began - ended if found else 0.0
            again = max(0, before - max(found[-1].left_at, 0)) if found else 0
            found.append(Attempt(event.attempt, first, last, left, event.at - began, still, again))
            ended, before = event.at, last
    return found


def others(state: State) -> list[str]:
    """Incidents that were no time limit."""
    return [i.diagnosis.words for i in state.incidents if i.diagnosis and i.diagnosis.cause != "time_limit"]


def carry(bench: Bench, args: argparse.Namespace, training: Training) -> tuple[LiveRun, float]:
    options = ("--time", str(args.minutes), "--set", f"job.signal_before={args.before}")
    began = time.time()
    run = bench.train("limits", training, options=options)
    run.wait_over(args.limits * args.minutes * 60.0 * 3)
    return run, time.time() - began


def line(attempt: Attempt) -> str:
    end = f"left with step {attempt.left_at} durable" if attempt.left_at >= 0 else "done"
    still = f", after {attempt.stood_still:.1f} s without a step" if attempt.stood_still else ""
    again = f", {attempt.again} steps done again" if attempt.again else ""
    return f"{attempt.name}: {attempt.trained_for:.0f} s{still}, {end}{again}"


def main() -> int:
    args = arguments()
    training = Training(steps=args.steps, every=100, delay=STEP)
    with Bench(keep=args.keep) as bench:
        wanted = reference(bench, Training(steps=args.steps, every=100, delay=0.0))
        run, took = carry(bench, args, training)
        folded = fold(run.dir.journal)
        met = attempts(read_events(run.dir.journal))
        limits = sum(a.left_at >= 0 for a in met)
        equal = run.wait_done() == wanted
        wrong = others(folded.state)
        report: dict[str, Any] = {
            "schema": 1, "bench": "limits", "unit": "s", "where": surroundings(), "training": vars(training),
            "limits": limits, "minutes": args.minutes, "took": round(took), "bit_identical": equal,
            "attempts": [asdict(a) for a in met], "others": wrong,
        }  # fmt: skip
        if args.json:
            print(json.dumps(report))
        else:
            print("\n".join(line(a) for a in met))
            verdict = "bit-identical to the uninterrupted run" if equal else "DIFFERENT from the uninterrupted run"
            print(f"\n{limits} limits of {args.minutes} minutes, one run, {took:.0f} s: {verdict}")
        progress(f"{limits} time limits met")
        if not equal or limits < args.limits or wrong or any(a.again for a in met):
            raise BenchError(f"{limits} limits, result equal: {equal}", "; ".join(wrong))
    return 0


if __name__ == "__main__":
    run_bench(main)
