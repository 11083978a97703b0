"""Measure false alarms and delays of the slowness and numerics detectors, on generated trainings, from seeds.

    python bench/slowness.py [--samples 100000] [--trainings 10] [--json]

1. step times: alarms on healthy series, with the bound that they imply (no alarm in n samples: fewer than one in n / 3,
   at 95%), beside the stated rate; and the delay, in samples, to the alarm for +10%, +20% and twice as long.
2. losses: the same, for losses with gradient norms; and the samples to the alarm for NaN, a spike and an explosion.
3. whole trainings with ranks on nodes: which kind of slowness is found, where, after how many steps; and false alarms
   on healthy ones.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import islice
from random import Random
from typing import Any

from slow_series import HARD, LOSSES, STEPS, Series, norms
from slow_training import Fault, Training

from transom_cli.diagnose import numerics
from transom_cli.diagnose.clue import Slow
from transom_cli.diagnose.slowness import changepoint, watch

PIECE = 20_000  # samples of one series
CHANGE = 1500  # the sample at which a change begins
PATIENCE = 3000


def alarms(series: Series, samples: int, limits: changepoint.Limits) -> int:
    found = 0
    for seed in range(max(1, samples // PIECE)):
        state = changepoint.Series()
        for step, seconds in enumerate(islice(series(Random(seed)), min(samples, PIECE))):
            state, events = changepoint.watch(state, step, seconds, limits)
            found += sum(isinstance(one, changepoint.Slower) for one in events)
    return found


def delay(series: Series, ratio: float, seed: int, limits: changepoint.Limits) -> int | None:
    """Samples from the change to the alarm; None: none in `PATIENCE`, or a false one before."""
    state = changepoint.Series()
    for step, seconds in enumerate(islice(series(Random(seed)), CHANGE + PATIENCE)):
        state, events = changepoint.watch(state, step, seconds * (ratio if step >= CHANGE else 1), limits)
        if any(isinstance(one, changepoint.Slower) for one in events):
            return step - CHANGE if step >= CHANGE else None
    return None


def loss_alarms(series: Series, samples: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for seed in range(max(1, samples // PIECE)):
        state, norm = numerics.NumericsState(), norms(Random(seed + 1))
        for step, loss in enumerate(islice(series(Random(seed)), min(samples, PIECE))):
            state, events = numerics.watch(state, step, loss, next(norm))
            for one in events:
                if isinstance(one, numerics.Found):
                    found[one.trouble.value] = found.get(one.trouble.value, 0) + 1
    return found


def loss_delay(series: Series, loss_times: float, norm_times: float, wanted: str, seed: int) -> int | None:
    state, norm = numerics.NumericsState(), norms(Random(seed + 1))
    for step, loss in enumerate(islice(series(Random(seed)), CHANGE + PATIENCE)):
        bad = step >= CHANGE
        state, events = numerics.watch(
            state, step, loss * (loss_times if bad else 1), next(norm) * (norm_times if bad else 1)
        )
        if any(isinstance(one, numerics.Found) and one.trouble.value == wanted for one in events):
            return step - CHANGE if bad else None
    return None


def faults(seed: int) -> list[Fault]:
    """One of each kind, on ranks of the seed's choice: 4 nodes of 4."""
    random, begins = Random(seed), 1200
    rank, node = random.randrange(16), random.randrange(4)
    return [
        Fault(Slow.STORAGE, begins),
        Fault(Slow.LOADER, begins, (rank,)),
        Fault(Slow.DEVICE, begins, (rank,)),
        Fault(Slow.NODE, begins, tuple(range(4 * node, 4 * node + 4))),
        Fault(Slow.LINK, begins),
        Fault(Slow.ALL, begins),
    ]


def first_slowness(training: Training, steps: int) -> tuple[int, watch.Began] | None:
    """Return the first slowness that is reported, and its step."""
    state = watch.SlowState()
    for step, readings in training.readings(steps):
        state, news = watch.watch(state, readings)
        for one in news:
            if isinstance(one, watch.Began):
                return step, one
    return None


def attributed(seed: int, fault: Fault, *, waits: bool) -> dict[str, Any]:
    found = first_slowness(Training(seed=seed, fault=fault, waits=waits), 2000)
    if found is None:
        return {"wanted": fault.kind.value, "found": "nothing", "ranks": False, "steps": None}
    step, one = found
    right = set(one.slowness.ranks) == set(fault.ranks)
    kind = one.slowness.kind.value if step >= fault.begins else "false alarm"
    return {"wanted": fault.kind.value, "found": kind, "ranks": right, "steps": step - fault.begins}


def middle(numbers: list[int | None]) -> str:
    known = sorted(n for n in numbers if n is not None)
    missed = len(numbers) - len(known)
    text = f"{known[len(known) // 2]} (most {known[-1]})" if known else "-"
    return text + (f", {missed} of {len(numbers)} not seen" if missed else "")


def measure(samples: int, trainings: int) -> dict[str, Any]:
    one, thousand = changepoint.Limits(), changepoint.Limits(series=1000)
    found: dict[str, Any] = {"samples": samples, "stated_rate": changepoint.RATE}
    found["step alarms"] = {name: alarms(series, samples, one) for name, series in {**STEPS, **HARD}.items()}
    found["step delays"] = {
        f"{name}, x {ratio}, {of} series": [delay(STEPS[name], ratio, seed, limits) for seed in range(trainings)]
        for name in list(STEPS)[:3]
        for ratio in (1.1, 1.2, 2.0)
        for of, limits in ((1, one), (1000, thousand))
    }
    found["loss alarms"] = {name: loss_alarms(series, samples) for name, series in LOSSES.items()}
    bad = {
        "NaN": (math.nan, 1.0, "nan_loss"),
        "loss x 2": (2.0, 1.0, "loss_spike"),
        "loss x 10": (10.0, 1.0, "loss_spike"),
        "norm x 100": (1.0, 100.0, "gradient_explosion"),
    }
    flat = LOSSES["warm-up, then flat"]
    found["loss delays"] = {
        name: [loss_delay(flat, *how, seed) for seed in range(trainings)] for name, how in bad.items()
    }
    healthy = [first_slowness(Training(seed=seed), 5000) for seed in range(trainings)]
    found["trainings"] = {
        "healthy, reported": sum(one is not None for one in healthy),
        "with waits": [attributed(s, f, waits=True) for s in range(trainings) for f in faults(s)],
        "without": [attributed(s, f, waits=False) for s in range(trainings) for f in faults(s)],
    }
    return found


def show(found: dict[str, Any]) -> None:
    samples = found["samples"]
    stated = f"stated: at most one in {found['stated_rate']}; none here bounds it to one in {samples // 3}"
    print(f"alarms in {samples} healthy step times; {stated}")
    for name, count in found["step alarms"].items():
        print(f"  {count:6}  {name}")
    print("samples to the alarm, median")
    for name, numbers in found["step delays"].items():
        print(f"  {name:55} {middle(numbers)}")
    print(f"alarms in {samples} healthy losses")
    for name, kinds in found["loss alarms"].items():
        print(f"  {sum(kinds.values()):6}  {name}  {kinds or ''}")
    for name, numbers in found["loss delays"].items():
        print(f"  {name:55} {middle(numbers)}")
    alarms = found["trainings"]["healthy, reported"]
    print(f"trainings of 16 ranks on 4 nodes; healthy ones of 5000 steps: {alarms} reported")
    for how in ("with waits", "without"):
        print(f"  {how}:")
        for kind in Slow:
            rows = [r for r in found["trainings"][how] if r["wanted"] == kind.value]
            right = sum(r["found"] == kind.value for r in rows)
            ranks = sum(r["found"] == kind.value and r["ranks"] for r in rows)
            others = sorted({r["found"] for r in rows} - {kind.value})
            after = middle([r["steps"] for r in rows if r["found"] != "false alarm"])
            said = f"{right}/{len(rows)}, ranks {ranks}/{len(rows)}, after {after} steps"
            print(f"    {kind.value:14} {said}  {others or ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000, help="of each healthy series [100000]")
    parser.add_argument("--trainings", type=int, default=10, help="of each kind, and series with a change [10]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.samples, options.trainings)
    print(json.dumps({"schema": 1, **found})) if options.json else show(found)


if __name__ == "__main__":
    main()
