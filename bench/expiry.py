"""Compare how long a node should stay excluded after a fault, on the StepFun trace.

    python bench/expiry.py

After each recorded outage the node returns, and each policy decides for how long a job still avoids it. Avoiding
costs one node-hour per hour. A failure within 30 days that meets the job costs its nodes times a quarter of an hour.
The regret is what a policy costs beyond one that knows the future, in node-hours per return. "By cost"
(`core.node_hazard`) is fitted to one half of the trace, and all policies are judged on the other half: other nodes, or
the later time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom_cli.core.node_hazard import DAY, ENDS, HOUR, PUBLISHED, Hazard, Return, expiry
from transom_cli.simulate.model import Outage, Trace
from transom_cli.simulate.traces import read_failures

FIXED = {"never": 0.0, "1 h": HOUR, "1 d": DAY, "7 d": 7 * DAY, "forever": float("inf")}
BY_COST = "by cost"
SIZES = (16, 128, 1024, 4096)
RECOVERY = 0.25 * HOUR
LATE = 30 * DAY  # a later failure has nothing to do with the outage


@dataclass(frozen=True)
class Came:
    """A node came back at `at`, and was used until it failed or the trace ended."""

    node: str
    at: float
    then: Return

    def until(self, end: float) -> Came:
        """As it was known at `end`."""
        used = min(self.then.used, end - self.at)
        return Came(self.node, self.at, Return(used, self.then.failed and used == self.then.used))


def returns(trace: Trace) -> list[Came]:
    by_node: dict[str, list[Outage]] = {}
    for outage in trace.outages:
        by_node.setdefault(outage.node, []).append(outage)
    found = []
    for node in sorted(by_node):
        spans: list[list[float]] = []
        for one in by_node[node]:  # in order of time; outages may overlap
            if spans and one.begin <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], one.end)
            else:
                spans.append([one.begin, one.end])
        for (_, end), following in zip(spans, [*spans[1:], None], strict=True):
            until = following[0] if following is not None else trace.length
            found.append(Came(node, end, Return(until - end, following is not None)))
    return found


def fitted(some: Iterable[Came]) -> Hazard:
    empty = (0.0,) * len(ENDS)
    return Hazard(empty, empty, PUBLISHED.base).updated(one.then for one in some)


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
    """regret: node-hours per return. repeated: failures that met the job within 30 days. away: node-hours avoided."""

    lasts: float
    regret: float
    repeated: int
    away: float


def judge(test: Sequence[Came], lasts: float, failure: float) -> Judged:
    regret, repeated, away = 0.0, 0, 0.0
    for one in (o.then for o in test):
        soon = one.failed and one.used < LATE
        met = soon and one.used > lasts
        avoided = min(lasts, one.used)
        regret += avoided + failure * met - (min(one.used, failure) if soon else 0.0)
        repeated, away = repeated + met, away + avoided
    return Judged(lasts, regret / HOUR / len(test), repeated, away / HOUR)


def rows(trace: Trace) -> dict[tuple[str, int], dict[str, Judged]]:
    found = {}
    for split, (train, test) in splits(trace).items():
        for nodes in SIZES:
            failure = nodes * RECOVERY
            policies = {**FIXED, BY_COST: expiry(fitted(train), failure)}
            found[split, nodes] = {name: judge(test, lasts, failure) for name, lasts in policies.items()}
    return found


def main() -> None:
    trace = read_failures("stepfun")
    assert isinstance(trace, Trace)
    print("regret in node-hours per return (repeated failures)")
    print(f"{'split':7}{'nodes':>6}" + "".join(f"{name:>15}" for name in (*FIXED, BY_COST)))
    for (split, nodes), policies in rows(trace).items():
        cells = "".join(f"{f'{one.regret:,.1f} ({one.repeated})':>15}" for one in policies.values())
        print(f"{split:7}{nodes:>6}{cells}   {policies[BY_COST].lasts / HOUR:g} h")


if __name__ == "__main__":
    main()
