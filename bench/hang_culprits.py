"""Score the named culprit of hangs: composed hangs of 8, 64 and 512 ranks, from stacks, collectives, and both.

    .venv/bin/python bench/hang_culprits.py [--seeds 5] [--worlds 8,64,512]

Each hang is written to files as by the agents, then read and judged. Top-1: the first named rank is a culprit, or, for
a hang without a culprit, no rank is named. (wrong: another rank is named; -: no rank is named although there is a
culprit.) The dumps are composed (see hang_made.py); real ones are less clean.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hang_made

from transom_cli.diagnose.hangs.reader import Evidence, clues, gather

KINDS = ("both", "stacks", "collectives")
RIGHT, WRONG, NOBODY = "right", "wrong", "-"


def judge(made: hang_made.Hang, evidence: Evidence) -> str:
    found = clues(evidence)
    named = found[0].culprits if found else ()
    if not named:
        return RIGHT if not made.culprits else NOBODY
    return RIGHT if named[0].rank in made.culprits else WRONG


def measure(fault: str, world: int, seeds: int, lost: float) -> tuple[dict[str, Counter[str]], float]:
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    longest = 0.0
    for seed in range(seeds):
        made = hang_made.hang(fault, world, seed)
        with tempfile.TemporaryDirectory() as folder:
            hang_made.write(made, Path(folder), lost=lost)
            began = time.process_time()
            evidence = gather(Path(folder))
            found["both"][judge(made, evidence)] += 1
            longest = max(longest, time.process_time() - began)
        found["stacks"][judge(made, replace(evidence, flights={}))] += 1
        found["collectives"][judge(made, replace(evidence, stacks={}))] += 1
    return found, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worlds", default="8,64,512")
    parser.add_argument("--lost", type=float, default=0.0, help="share of ranks whose dumps are missing")
    args = parser.parse_args()
    print(f"top-1 of {args.seeds} hangs each, {args.lost:.0%} of the dumps lost; seconds of a core for one reading\n")
    print(f"{'':24}{'ranks':>6}" + "".join(f"{kind:>24}" for kind in KINDS) + f"{'seconds':>10}")
    total: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for fault in (*hang_made.STUCK, *hang_made.CALLS, *hang_made.NOBODY):
        for world in map(int, args.worlds.split(",")):
            found, longest = measure(fault, world, args.seeds, args.lost)
            cells = []
            for kind, counted in found.items():
                total[kind] += counted
                others = ", ".join(f"{counted[x]} {x}" for x in (WRONG, NOBODY) if counted[x])
                cells.append(f"{counted[RIGHT] / args.seeds:.0%}{f' ({others})' if others else ''}")
            print(f"{fault:24}{world:>6}" + "".join(f"{cell:>24}" for cell in cells) + f"{longest:>10.2f}", flush=True)
    sums = [f"{c[RIGHT] / c.total():.1%} ({c[WRONG]} wrong)" for c in total.values()]
    print(f"{'all':30}" + "".join(f"{cell:>24}" for cell in sums))


if __name__ == "__main__":
    main()
