"""Slow nodes in simulated fleets: criteria learned from the fleet, beside fixed limits.

    python bench/criteria.py [--fleets 20]

A fleet has one model of machine. Its true speed differs from the vendor's figure by up to 8%, its nodes by 1 to 3%, and
each measurement by 1 to 4%. A slow node is 6% to 40% slower. What is judged is one new measurement of each node, after
three earlier ones of all. `fixed 5%` and `fixed 10%` are limits below the vendor's figure; AUC: area under the ROC
curve over all fleets of a row, with the distance from the vendor's figure or from the learned usual rate as the score.
"""

from __future__ import annotations

import argparse
import itertools
import random
from bisect import bisect_left, bisect_right

from transom_cli.health.history.criteria import criteria
from transom_cli.health.history.records import Measured

VENDOR = 1e12


def fleet(nodes: int, share: float, seed: int) -> tuple[list[Measured], list[tuple[float, bool]]]:
    """Return the history, and for each node a new rate and whether it is slow."""
    chance = random.Random(f"{nodes}/{share}/{seed}")
    usual = VENDOR * chance.uniform(0.92, 1.02)
    between, within = chance.uniform(0.01, 0.03), chance.uniform(0.01, 0.04)
    slow = set(chance.sample(range(nodes), max(1, round(share * nodes))))
    history, now = [], []
    for number in range(nodes):
        own = usual * chance.gauss(1.0, between) * (chance.uniform(0.6, 0.94) if number in slow else 1.0)
        for when in range(3):
            history.append(Measured(float(when), f"n{number}", "model", (("gemm", own * chance.gauss(1.0, within)),)))
        now.append((own * chance.gauss(1.0, within), number in slow))
    return history, now


def area(scores: list[tuple[float, bool]]) -> float:
    """Return the chance that a slow node has a lower score than a good one."""
    good = sorted(s for s, slow in scores if not slow)
    bad = [s for s, slow in scores if slow]
    wins = sum(len(good) - (bisect_left(good, s) + bisect_right(good, s)) / 2 for s in bad)
    return wins / (len(good) * len(bad))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20)
    args = parser.parse_args()
    print("found: share of slow nodes found; false: share of good nodes called slow")
    print(f"{'nodes':>5} {'slow':>5}  {'learned: found':>14} {'false':>6} {'AUC':>6}", end="  ")
    print(f"{'fixed 5%: found':>15} {'false':>6}  {'fixed 10%: found':>16} {'false':>6} {'AUC':>6}")
    for nodes, share in itertools.product((20, 50, 100, 500), (0.03, 0.05, 0.10, 0.20)):
        called: dict[str, list[tuple[bool, bool]]] = {"learned": [], "5": [], "10": []}
        learned_scores, fixed_scores = [], []
        for seed in range(args.fleets):
            history, now = fleet(nodes, share, seed)
            criterion = criteria(history).get(("model", "gemm"))
            for rate, slow in now:
                called["learned"].append((criterion is not None and rate < criterion.limit, slow))
                called["5"].append((rate < 0.95 * VENDOR, slow))
                called["10"].append((rate < 0.90 * VENDOR, slow))
                learned_scores.append((rate / (criterion.usual if criterion else VENDOR), slow))
                fixed_scores.append((rate / VENDOR, slow))
        row = []
        for some in called.values():
            slow_ones = [c for c, slow in some if slow]
            good_ones = [c for c, slow in some if not slow]
            row += [sum(slow_ones) / len(slow_ones), sum(good_ones) / len(good_ones)]
        print(f"{nodes:>5} {share:>5.0%}  {row[0]:>14.1%} {row[1]:>6.2%} {area(learned_scores):>6.3f}", end="  ")
        print(f"{row[2]:>15.1%} {row[3]:>6.2%}  {row[4]:>16.1%} {row[5]:>6.2%} {area(fixed_scores):>6.3f}")


if __name__ == "__main__":
    main()
