"""Who is named when ranks hang? Composed hangs of 8, 64 and 512 ranks, by kind, from stacks, from collectives, from both.

    .venv/bin/python bench/hang_culprits.py [--seeds 10] [--worlds 8,64,512]

Each hang is written to files as the agents keep them, read and judged. Top-1: the first rank that is named is one of
those to blame; of a hang that is nobody's fault, that nobody is named. (wrong: somebody else is; -: nobody is, where
somebody was to blame.) The dumps are composed, see hang_made.py: real ones are messier.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hang_made

from transom_cli.diagnose.hangs.reading import read_hang

EVIDENCE = {"both": (True, True), "stacks": (True, False), "collectives": (False, True)}
RIGHT, WRONG, NOBODY = "right", "wrong", "-"


def judge(made: hang_made.Hang, folder: Path) -> str:
    clues = read_hang(folder)
    named = clues[0].culprits if clues else ()
    if not named:
        return RIGHT if not made.culprits else NOBODY
    return RIGHT if named[0].rank in made.culprits else WRONG


def measure(fault: str, world: int, seeds: int, kind: str, lost: float) -> tuple[Counter[str], float]:
    found: Counter[str] = Counter()
    took = 0.0
    stacks, flights = EVIDENCE[kind]
    for seed in range(seeds):
        made = hang_made.hang(fault, world, seed)
        with tempfile.TemporaryDirectory() as folder:
            hang_made.write(made, Path(folder), stacks=stacks, flights=flights, lost=lost)
            began = time.perf_counter()
            found[judge(made, Path(folder))] += 1
            took += time.perf_counter() - began
    return found, took / seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--worlds", default="8,64,512")
    parser.add_argument("--lost", type=float, default=0.0, help="share of ranks whose dumps are missing")
    asked = parser.parse_args()
    print(f"top-1 of {asked.seeds} hangs each, {asked.lost:.0%} of the dumps lost; the longest reading in seconds\n")
    print(f"{'':24}{'ranks':>6}" + "".join(f"{kind:>24}" for kind in EVIDENCE) + f"{'seconds':>10}")
    total: dict[str, Counter[str]] = {kind: Counter() for kind in EVIDENCE}
    for fault in (*hang_made.STUCK, *hang_made.CALLS, *hang_made.NOBODY):
        for world in map(int, asked.worlds.split(",")):
            cells, longest = [], 0.0
            for kind in EVIDENCE:
                found, took = measure(fault, world, asked.seeds, kind, asked.lost)
                total[kind] += found
                longest = max(longest, took)
                others = ", ".join(f"{found[x]} {x}" for x in (WRONG, NOBODY) if found[x])
                cells.append(f"{found[RIGHT] / asked.seeds:.0%}{f' ({others})' if others else ''}")
            print(f"{fault:24}{world:>6}" + "".join(f"{cell:>24}" for cell in cells) + f"{longest:>10.2f}", flush=True)
    sums = [f"{c[RIGHT] / c.total():.1%} ({c[WRONG]} wrong)" for c in total.values()]
    print(f"{'all':30}" + "".join(f"{cell:>24}" for cell in sums))


if __name__ == "__main__":
    main()
