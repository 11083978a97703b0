"""Fuzz checkpoints: random models, layouts, types, wrappers and faults; saved, and restored in another layout.

    python bench/ckpt_fuzz.py --cases 2000 --from 0 --seed 1 --jobs 2      (make fuzz-ckpt)
    python bench/ckpt_fuzz.py --case '{"seed": ...}'                       one case, as it was reported

Every element of every tensor is compared bit for bit with the value that was saved. A difference is a failure, and so
is a refusal that does not name what it refuses, a lost step that was safe, and a hang. A failed case is printed as one
line; add it to tests/ckpt/ckpt_fuzz_regressions.jsonl, which the tests replay. Interrupted, it prints how to continue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ckpt_fuzz_case import Case, decode, draw, encode

EVERY = 50  # cases between two lines of progress
_runner = None


def _start() -> None:
    global _runner
    from ckpt_fuzz_run import Runner

    _runner = Runner()


def _one(case: Case):  # type: ignore[no-untyped-def]
    assert _runner is not None
    return _runner.run(case)


def _end(_: int) -> None:
    if _runner is not None:
        _runner.close()
    time.sleep(0.5)  # so that each process ends its own runner


def run(cases: list[Case], jobs: int) -> Iterator[tuple[int, object]]:
    """Run the cases in that many processes. Yields each one's place and result, in order."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start) as pool:
        try:
            yield from enumerate(pool.map(_one, cases))
        finally:
            list(pool.map(_end, range(jobs)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz checkpoints.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--case", help="run this case only")
    parser.add_argument("--file", type=Path, help="run the cases of this file only")
    options = parser.parse_args()
    if options.case:
        cases = [decode(options.case)]
    elif options.file:
        cases = [decode(line) for line in options.file.read_text().splitlines() if line and line[0] == "{"]
    else:
        cases = [draw(options.seed, options.first + number) for number in range(options.cases)]
    began, outcomes, failed = time.monotonic(), Counter[str](), 0
    number = 0
    try:
        for number, result in run(cases, options.jobs):
            outcomes[result.outcome] += 1  # type: ignore[attr-defined]
            if result.failure:  # type: ignore[attr-defined]
                failed += 1
                _report(options.first + number, result)
            if (number + 1) % EVERY == 0:
                print(f"{number + 1} cases in {time.monotonic() - began:.0f} s, {failed} failures", flush=True)
    except KeyboardInterrupt:
        print(f"continue with: --from {options.first + number + 1} --seed {options.seed}", flush=True)
        return 130
    took = time.monotonic() - began
    print(f"{len(cases)} cases in {took:.0f} s ({took / len(cases):.2f} s a case), {failed} failures")
    print("outcomes: " + ", ".join(f"{what} {count}" for what, count in outcomes.most_common()))
    return 1 if failed else 0


def _report(number: int, result) -> None:  # type: ignore[no-untyped-def]
    print(f"\ncase {number}: {result.case.text}\n  {result.failure}")
    for line in result.said.splitlines()[-12:]:
        print(f"    | {line}")
    print(f"  {encode(result.case)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
