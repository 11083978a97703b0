"""Compare how long a node should stay excluded after a fault, on the StepFun trace.

    python bench/expiry.py

After each recorded outage the node returns, and each policy decides for how long a job still avoids it. Avoiding
costs one node-hour per hour. A failure within 30 days that meets the job costs its nodes times a quarter of an hour.
The regret is what a policy costs beyond one that knows the future, in node-hours per return. The rules of
`core.node_hazard` are fitted to one half of the trace, and all policies are judged on the other half: other nodes, or
the later time.

    by cost     the rates of all nodes that returned
    by node     also how often this node failed in the 30 days before: what a run does
    a run       by node, for an hour at least and a day at most: the defaults of a run
    learning    by node; each return that is over by then is added to the half that was fitted, as a site's history is

Below: how much better what is known about a node predicts the other half (log likelihood per 100 failures).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import log

from transom_cli.core.node_hazard import DAY, ENDS, HOUR, PUBLISHED, RECENT, WEIGHT, Hazard, Use, expiry
from transom_cli.core.operator.isolation import LONGEST
from transom_cli.simulate.model import Outage, Trace
from transom_cli.simulate.traces import read_failures

FIXED = {"never": 0.0, "1 h": HOUR, "1 d": DAY, "7 d": 7 * DAY, "forever": float("inf")}
BY_COST, BY_NODE, A_RUN, LEARNING = "by cost", "by node", "a run", "learning"
SIZES = (16, 128, 1024, 4096)
RECOVERY = 0.25 * HOUR
LATE = ENDS[-1]  # a later failure has nothing to do with the outage
EMPTY = Hazard((0.0,) * len(ENDS), (0.0,) * len(ENDS), PUBLISHED.base)


@dataclass(frozen=True)
class Came:
    """A node came back at `at`, and was used until it failed or the trace ended.

    kind: of the first fault of the outage. hardware: any of its faults was one. gap: seconds from the return before
    until the outage; None: there was none. lasted: the outage, in seconds.
    """

    node: str
    at: float
    then: Use
    kind: str = ""
    hardware: bool = False
    gap: float | None = None
    lasted: float = 0.0

    def until(self, end: float) -> Came:
        """As it was known at `end`."""
        used = min(self.then.end, end - self.at)
        return replace(self, then=replace(self.then, end=used, failed=self.then.failed and used == self.then.end))


def returns(trace: Trace) -> list[Came]:
    by_node: dict[str, list[list[Outage]]] = {}
    for outage in trace.outages:  # in order of time; outages may overlap
        spans = by_node.setdefault(outage.node, [])
        if spans and outage.begin <= max(one.end for one in spans[-1]):
            spans[-1].append(outage)
        else:
            spans.append([outage])
    found = []
    for node, spans in sorted(by_node.items()):
        begins, ends = [span[0].begin for span in spans], [max(one.end for one in span) for span in spans]
        for n, span in enumerate(spans):
            last = n + 1 == len(spans)
            until = trace.length if last else begins[n + 1]
            recent = sum(begins[n] - RECENT < begin for begin in begins[:n])
            use = Use(until - ends[n], not last, recent=recent)
            gap = begins[n] - ends[n - 1] if n else None
            hardware = any(one.fault.hardware for one in span)
            found.append(Came(node, ends[n], use, span[0].fault.name, hardware, gap, ends[n] - begins[n]))
    return found


def fitted(some: Iterable[Came]) -> Hazard:
    return EMPTY.updated(one.then for one in some)


def splits(trace: Trace) -> dict[str, tuple[list[Came], list[Came]]]:
    """To fit, and to judge."""
    all_ = returns(trace)
    nodes = sorted({one.node for one in all_})
    random.Random(1).shuffle(nodes)
    first, half = set(nodes[: len(nodes) // 2]), trace.length / 2
    by_time = [one.until(half) for one in all_ if one.at < half], [one for one in all_ if one.at >= half]
    return {"nodes": ([o for o in all_ if o.node in first], [o for o in all_ if o.node not in first]), "time": by_time}


@dataclass(frozen=True)
class Judged:
    """lasts: seconds, on average. regret: node-hours per return. repeated: failures that met the job within 30 days.
    away: node-hours avoided."""

    lasts: float
    regret: float
    repeated: int
    away: float


def judge(test: Sequence[Came], lasts: Callable[[Came], float], failure: float) -> Judged:
    regret, repeated, away, total = 0.0, 0, 0.0, 0.0
    for one in test:
        use, wait = one.then, lasts(one)
        soon = use.failed and use.end < LATE
        met = soon and use.end > wait
        avoided = min(wait, use.end)
        regret += avoided + failure * met - (min(use.end, failure) if soon else 0.0)
        repeated, away, total = repeated + met, away + avoided, total + wait
    return Judged(total / len(test), regret / HOUR / len(test), repeated, away / HOUR)


def learned(known: Hazard, test: Sequence[Came]) -> dict[Came, Hazard]:
    """Return what is known at each return: `known`, and the returns before it."""
    return {one: known.updated(other.until(one.at).then for other in test if other.at < one.at) for one in test}


def rules(known: Hazard, then: dict[Came, Hazard], failure: float) -> dict[str, Callable[[Came], float]]:
    return {
        **{name: lambda one, fixed=fixed: fixed for name, fixed in FIXED.items()},  # type: ignore[misc]
        BY_COST: lambda one: expiry(known, failure),
        BY_NODE: lambda one: expiry(known, failure, recent=one.then.recent),
        A_RUN: lambda one: min(max(HOUR, expiry(known, failure, recent=one.then.recent)), LONGEST),
        LEARNING: lambda one: expiry(then[one], failure, recent=one.then.recent),
    }


def rows(trace: Trace) -> dict[tuple[str, int], dict[str, Judged]]:
    found = {}
    for split, (train, test) in splits(trace).items():
        known = fitted(train)
        then = learned(known, test)
        for nodes in SIZES:
            failure = nodes * RECOVERY
            policies = rules(known, then, failure)
            found[split, nodes] = {name: judge(test, lasts, failure) for name, lasts in policies.items()}
    return found


EVIDENCE: dict[str, Callable[[Came], Hashable]] = {
    "recent failures: 0, 1, more": lambda one: min(2, one.then.recent),
    "failed within 7 days of its last return": lambda one: one.gap is not None and one.gap < 7 * DAY,
    "hardware or not": lambda one: one.hardware,
    "kind of the fault": lambda one: one.kind,
    "length of the outage": lambda one: sum(one.lasted > limit for limit in (900.0, HOUR, DAY)),
}


def gain(train: Sequence[Came], test: Sequence[Came], evidence: Callable[[Came], Hashable]) -> float:
    """Return by how much a factor for each kind of evidence predicts `test` better than the common rates."""
    rates = fitted(train).rates()

    def outcome(one: Came) -> tuple[bool, float]:
        pairs = zip((0.0, *ENDS), ENDS, rates, strict=False)
        expected = sum(rate * max(0.0, min(end, one.then.end) - begin) for begin, end, rate in pairs)
        return one.then.failed and one.then.end < LATE, expected

    sums: dict[Hashable, list[float]] = {}
    for one in train:
        pair = sums.setdefault(evidence(one), [WEIGHT, WEIGHT])
        pair[0], pair[1] = pair[0] + outcome(one)[0], pair[1] + outcome(one)[1]
    better, failures = 0.0, 0
    for one in test:
        failed, expected = outcome(one)
        factor = sums[evidence(one)][0] / sums[evidence(one)][1] if evidence(one) in sums else 1.0
        better, failures = better + failed * log(factor) - (factor - 1.0) * expected, failures + failed
    return 100 * better / failures


def main() -> None:
    trace = read_failures("stepfun")
    assert isinstance(trace, Trace)
    names = (*FIXED, BY_COST, BY_NODE, A_RUN, LEARNING)
    print("regret in node-hours per return (repeated failures)")
    print(f"{'split':7}{'nodes':>6}" + "".join(f"{name:>15}" for name in names))
    for (split, nodes), policies in rows(trace).items():
        cells = "".join(f"{f'{one.regret:,.1f} ({one.repeated})':>15}" for one in policies.values())
        print(f"{split:7}{nodes:>6}{cells}   {policies[BY_NODE].lasts / HOUR:.1f} h")
    (a, b), by_time = splits(trace)["nodes"], splits(trace)["time"]
    print(f"\n{'gain in log likelihood per 100 failures':45}{'nodes':>8}{'others':>8}{'time':>8}")
    for name, evidence in EVIDENCE.items():
        cells = "".join(f"{gain(*pair, evidence):>+8.1f}" for pair in ((a, b), (b, a), by_time))
        print(f"{name:45}{cells}")


if __name__ == "__main__":
    main()
