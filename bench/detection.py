"""What the limits of the detectors cost: false alarms beside late and missed ones (ROC), on the benches' series.

    python bench/detection.py [--nodes 1024] [--samples 20000]

1. stall limit: lengths of steps of healthy trainings (slow_series.py) against hangs, as rare as in Llama 3. The limit
   is in medians of a step. A false alarm costs a restart, each hang costs the limit.
2. slow node: the smallest rise that is reported (changepoint.Limits.least). A false alarm costs a swap. A slow node
   that is not found costs its slowness for a day.
3. silent node: the limit for the silence of a node, after which it is probed. A probe costs the training nothing, so
   the loss is that of the wait alone.

A step takes 10 s; 4 faults per 1,000 node-days, 3% hangs and 11% lost nodes (Llama 3); a restart and the
lost work cost 5 minutes; one node in 1,000 becomes slow each day, by 3 to 50%.
"""

from __future__ import annotations

import argparse
from itertools import islice
from random import Random

from slow_series import HARD, STEPS, Series
from slowness import alarms, delay

from transom_cli.core.detection_cost import Point, Stakes, cheapest, curve
from transom_cli.core.stall_state import StallLimits
from transom_cli.diagnose.slowness import changepoint
from transom_cli.simulate.model import DAY, FAULTS, HANG, LOST

STEP, FALSE = 10.0, 300.0  # seconds
RATE = 4.0e-3  # faults per node-day
SLOW = 1.0e-3  # slow nodes per node-day
RISES = (0.03, 0.05, 0.1, 0.2, 0.5)
LEAST = (0.03, 0.05, 0.07, 0.1, 0.15, 0.25)
LIMITS = (2.0, 4.0, 8.0, 16.0, 24.0, 48.0, 96.0)
NOW = StallLimits().factor * StallLimits().patience


def share(effect: str) -> float:
    return sum(f.share for f in FAULTS if f.effect == effect) / sum(f.share for f in FAULTS)


def stalls(series: Series, samples: int, nodes: int) -> tuple[list[Point], Point]:
    """Return the points of `LIMITS`, and the cheapest of all limits."""
    steps = list(islice(series(Random(1)), samples))
    stakes = Stakes(DAY / STEP, nodes * RATE * share(HANG), FALSE, delay=STEP)
    return list(curve(steps, stakes, limits=LIMITS)), cheapest(curve(steps, stakes))


def slow(least: float, samples: int, nodes: int) -> tuple[float, float, float]:
    """Return false alarms per 100,000 steps of a healthy training, the share of rises found, and seconds lost a day."""
    limits = changepoint.Limits(least=least)
    healthy = {**STEPS, **HARD}
    false = sum(alarms(one, samples, limits) for one in healthy.values()) / (samples * len(healthy))
    waits = [(rise, delay(one, 1 + rise, 1, limits)) for rise in RISES for one in STEPS.values()]
    lost = sum(r / (1 + r) * (DAY if wait is None else min(DAY, wait * STEP)) for r, wait in waits) / len(waits)
    cost = DAY / STEP * false * FALSE + nodes * SLOW * lost
    return 1e5 * false, sum(wait is not None for _, wait in waits) / len(waits), cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=20_000, help="steps of each healthy series")
    args = parser.parse_args()
    print(f"1. stall limit, {args.nodes} nodes: seconds lost a day by the limit in medians (now {NOW:g}); the cheapest")
    print(f"{'healthy training':36}" + "".join(f"{limit:>9g}" for limit in LIMITS) + "   cheapest")
    found = {name: stalls(series, args.samples, args.nodes) for name, series in STEPS.items()}
    for name, (points, best) in found.items():
        cells = "".join(f"{point.cost:>9,.0f}" for point in points)
        print(f"{name:36}{cells}   {best.limit:.1f}: {best.cost:,.0f} s")
    print("\n   ROC: false alarms per 100,000 healthy steps (every hang is found, that many medians late)")
    for name, (points, _) in found.items():
        print(f"{name:36}" + "".join(f"{1e5 * point.false:>9,.0f}" for point in points))
    print("\n2. slow node: the smallest rise that is reported (now 7%)")
    print(f"{'least':>6}{'false per 100,000 steps':>25}{'rises found':>13}{'seconds lost a day':>20}")
    for least in LEAST:
        false, found, cost = slow(least, args.samples, args.nodes)
        print(f"{least:>6.0%}{false:>25.2f}{found:>13.0%}{cost:>20,.0f}")
    lost = args.nodes * RATE * share(LOST)
    print(f"\n3. silent node: {lost:.2f} lost nodes a day; seconds lost a day by the limit (now 10 s)")
    print("   " + ", ".join(f"{limit:g} s: {lost * limit:.1f}" for limit in (5.0, 10.0, 20.0, 60.0)))


if __name__ == "__main__":
    main()
