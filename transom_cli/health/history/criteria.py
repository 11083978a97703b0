"""How fast the nodes of a site usually are, learned from its own measurements. Pure.

As in SuperBench's validator (USENIX ATC '24), the criterion of a benchmark is learned from the fleet: nodes that are
similar form a cluster, and what lies below the cluster is defective. Here similarity is the ratio of two rates. The
cluster begins at the median and grows or shrinks until it is stable. A criterion is one-sided: a fast node is no fault.
It is learned for each model of machine by itself, from `NODES` nodes on, and from the median of each node's newest
measurements, so that one busy moment changes nothing.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.history.records import Measured, Record
from transom_cli.health.probe.speed import amount, middle

CHECK = "compute_fleet"
NODES = 20  # nodes of a model, before anything is concluded
NEWEST = 5  # measurements of a node
SIMILAR = 0.95  # SuperBench: less than 5% apart is the same
DEVIATIONS = 4.0  # of the cluster: on noisy machines, more than 5% apart may be the same
WIDEST = 0.8  # machines as noisy as this have no common speed
MOST = 0.5  # share of nodes outside the cluster; with more there are several populations, and no criterion


@dataclass(frozen=True)
class Criterion:
    """usual: median of the cluster. limit: below it a node is slow. nodes: seen; alike: of them, in the cluster."""

    usual: float
    limit: float
    nodes: int
    alike: int


def learn(rates: Iterable[float]) -> Criterion | None:
    """Learn from one rate per node. None: too few nodes, or no common speed."""
    values = sorted(rates)
    if len(values) < NODES or values[0] <= 0.0:
        return None
    centre, spread = middle(values)
    similar = min(SIMILAR, max(WIDEST, math.exp(-DEVIATIONS * spread)))
    cluster = values
    for _ in range(len(values)):
        new = [v for v in values if min(v, centre) / max(v, centre) >= similar]
        if not new:
            return None
        if new == cluster:
            break
        cluster, centre = new, statistics.median(new)
    if len(cluster) <= MOST * len(values):
        return None
    return Criterion(centre, similar * centre, len(values), len(cluster))


def criteria(records: Iterable[Record]) -> dict[tuple[str, str], Criterion]:
    """Return the criterion of each model and kernel."""
    seen: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in sorted((r for r in records if isinstance(r, Measured)), key=lambda r: r.wall):
        for name, rate in one.rates:
            seen.setdefault((one.kind, name), {}).setdefault(one.node, []).append(rate)
    learned = {key: learn(statistics.median(v[-NEWEST:]) for v in nodes.values()) for key, nodes in seen.items()}
    return {key: one for key, one in learned.items() if one is not None}


def judge_fleet(now: Iterable[Measured], records: Iterable[Record]) -> tuple[Finding, ...]:
    """Judge new measurements against earlier ones: one finding per node of a model that is known well enough.

    At most MONITOR: speed alone proves nothing.
    """
    known = criteria(records)
    found = []
    for one in now:
        slow, judged = [], 0
        for name, rate in one.rates:
            criterion = known.get((one.kind, name))
            judged += criterion is not None
            if criterion is not None and rate < criterion.limit:
                slow.append(
                    f"{name} {amount(rate)}; {criterion.alike} of {criterion.nodes} nodes of this model have about "
                    f"{amount(criterion.usual)}, and less than {amount(criterion.limit)} is slow"
                )
        if slow:
            found.append(Finding(CHECK, Verdict.MONITOR, one.node, "; ".join(slow), Remedy.WATCH))
        elif judged:
            text = f"{judged} kernels are as fast as on the site's other nodes of this model"
            found.append(Finding(CHECK, Verdict.PASS, one.node, text))
    return tuple(found)
