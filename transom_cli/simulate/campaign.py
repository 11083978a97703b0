"""Many simulated runs on all cores, and what they say together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean, quantiles

from transom_cli.core.goodput import Kind
from transom_cli.simulate.cluster import Cluster, Outcome
from transom_cli.simulate.model import Scenario


@dataclass(frozen=True)
class Interval:
    """The mean of some runs, and the interval that holds 90% of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        low, *_, high = quantiles(values, n=20, method="inclusive") if len(values) > 1 else 2 * list(values)
        return cls(fmean(values), low, high)


@dataclass(frozen=True)
class Summary:
    """The runs of one scenario. Counts are means per run.

    hours: Lost on average, by kind; `slower`: by slow steps, also those on fewer nodes.
    """

    goodput: Interval
    hours: dict[str, float]
    faults: float
    incidents: float
    requeues: float
    relaunches: float
    drained: float
    excluded: float
    wrong: float
    unseen: float
    stopped: float

    @classmethod
    def of(cls, runs: Sequence[Outcome]) -> Summary:
        lost = {k.value: fmean(r.seconds(k) for r in runs) / 3600.0 for k in Kind if k is not Kind.PRODUCTIVE}
        lost["slower"] = fmean(max(0.0, r.seconds(Kind.PRODUCTIVE) - r.work) for r in runs) / 3600.0
        return cls(
            Interval.of([r.goodput for r in runs]),
            {kind: hours for kind, hours in lost.items() if hours > 0},
            fmean(r.faults for r in runs),
            fmean(r.incidents for r in runs),
            fmean(max(0, r.attempts - 1) for r in runs),
            fmean(max(0, r.launches - r.attempts) for r in runs),
            fmean(r.drained for r in runs),
            fmean(r.excluded for r in runs),
            fmean(r.wrong for r in runs),
            fmean(r.unseen for r in runs),
            fmean(r.phase == "failed" for r in runs),
        )


def simulate(
    scenarios: Sequence[Scenario], runs: int, seed: int, workers: int = 0, done: Callable[[], None] = lambda: None
) -> list[list[Outcome]]:
    """Run each scenario with the same seeds. The result does not depend on the number of workers.

    workers: Processes; 0: one per core. done: Called after each run.
    """
    work = [(scenario, seed + n) for scenario in scenarios for n in range(runs)]
    workers = min(workers or len(os.sched_getaffinity(0)), len(work))
    found = []
    if workers <= 1:
        for one in work:
            found.append(_run(one))
            done()
    else:
        with ProcessPoolExecutor(workers) as pool:
            for outcome in pool.map(_run, work):
                found.append(outcome)
                done()
    return [found[i : i + runs] for i in range(0, len(found), runs)]


def _run(work: tuple[Scenario, int]) -> Outcome:
    return Cluster(*work).run()
