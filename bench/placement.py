"""How much time does the order of nodes save? Simulated clusters, whose network has the stated costs.

    python bench/placement.py [--seeds 5]

Topologies: a fat-tree with leaf switches of 16 nodes and pods of 64, whose upper links are shared (2:1 each); a
rail-optimised cluster, where 32 nodes share their leaf switches; a dragonfly with groups of 32, whose links between
groups are shared. Slurm gives the job a random half of the cluster, in the order of names, which are dealt to switches
as racks are filled: some by row, some across. 1% of the links are 5 times slower, as with a bad cable.

The preflight measures two partners of each node and 4 pairs at each height of switches. What is compared: seconds of a
ring all-reduce (the slowest link of the ring, for each piece), a double binary tree over the order (the slowest path),
and a pipeline of 8 stages in line (the slowest link between stages, of all pipelines). The lower bound is that of the
ring: as few links between switches as possible, and no slow one.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time

from transom_cli.core.placement import Network, place

KINDS = ("fat-tree", "rail", "dragonfly")
STAGES = 8


class Cluster:
    def __init__(self, kind: str, jobs: int, seed: int) -> None:
        self.kind, self.chance = kind, random.Random(f"{kind}/{jobs}/{seed}")
        whole = [f"n{i:04}" for i in range(2 * jobs)]
        across = self.chance.random() < 0.5
        place_of = {n: (i * 37 % len(whole) if across else i) for i, n in enumerate(whole)}
        self.nodes = sorted(self.chance.sample(whole, jobs))
        self.switches = {n: self._above(place_of[n]) for n in self.nodes}
        count = max(1, jobs * (jobs - 1) // 200)
        self.slow = set()
        while len(self.slow) < count:
            a, b = self.chance.sample(self.nodes, 2)
            self.slow.add((min(a, b), max(a, b)))

    def _above(self, at: int) -> tuple[str, ...]:
        if self.kind == "fat-tree":
            return "core", f"pod{at // 64}", f"leaf{at // 16}"
        return "spine", f"{'rail' if self.kind == 'rail' else 'group'}{at // 32}"

    def seconds(self, a: str, b: str) -> float:
        first, second = self.switches[a], self.switches[b]
        height = sum(x != y for x, y in zip(first, second, strict=True))
        base = {"fat-tree": (1.0, 1.6, 2.5), "rail": (1.0, 1.5), "dragonfly": (1.0, 2.2)}[self.kind][height]
        return base * (5.0 if (min(a, b), max(a, b)) in self.slow else 1.0)

    def measured(self) -> Network:
        """A ring in Slurm's order, as the preflight's pairs, and some pairs at each height; 5% noise."""
        pairs = set(itertools.pairwise((*self.nodes, self.nodes[0])))
        pairs |= {tuple(self.chance.sample(self.nodes, 2)) for _ in range(12)}
        return Network(self.switches, {(a, b): self.seconds(a, b) * self.chance.uniform(0.95, 1.05) for a, b in pairs})

    def bound(self) -> float:
        """The least mean of a ring's links: one link in and out of each group of nodes."""
        levels = [
            len({s[: i + 1] for s in self.switches.values()}) for i in range(len(next(iter(self.switches.values()))))
        ]
        costs = {"fat-tree": (1.0, 1.6, 2.5), "rail": (1.0, 1.5), "dragonfly": (1.0, 2.2)}[self.kind]
        top, n = len(costs) - 1, len(self.nodes)
        crossing, total = 0, 0.0
        for height in range(top, 0, -1):
            groups = levels[len(levels) - height] if levels[len(levels) - height] > 1 else 0
            total += (groups - crossing) * costs[height]
            crossing = groups
        return (total + (n - crossing) * costs[0]) / n


def ring(cluster: Cluster, order: tuple[str, ...]) -> tuple[float, float]:
    """The slowest and the mean link."""
    links = [cluster.seconds(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return max(links), statistics.mean(links)


def tree(cluster: Cluster, order: tuple[str, ...]) -> float:
    """The slowest path to the root of a binary tree over the order (a node's parent halves its section)."""

    def path(low: int, high: int) -> float:
        if high - low <= 1:
            return 0.0
        middle = (low + high) // 2
        below = []
        for start, end in ((low, middle), (middle + 1, high)):
            if end > start:
                child = (start + end) // 2
                below.append(cluster.seconds(order[middle], order[child]) + path(start, end))
        return max(below, default=0.0)

    return path(0, len(order))


def pipeline(cluster: Cluster, order: tuple[str, ...]) -> float:
    """The mean over pipelines of their slowest link."""
    lines = [order[i : i + STAGES] for i in range(0, len(order) - STAGES + 1, STAGES)]
    return statistics.mean(max(cluster.seconds(a, b) for a, b in itertools.pairwise(line)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    print("a link within a leaf switch takes 1; means over seeds")
    print(
        f"{'cluster':10} {'nodes':>5} {'order':8} {'ring, slowest':>13} {'ring, mean':>10} "
        f"{'tree':>6} {'pipeline':>8} {'plan':>7}"
    )
    for kind, jobs in itertools.product(KINDS, (64, 256, 1024)):
        rows: dict[str, list[tuple[float, ...]]] = {"slurm": [], "random": [], "transom": []}
        bounds = []
        for seed in range(args.seeds):
            cluster = Cluster(kind, jobs, seed)
            network = cluster.measured()
            began = time.perf_counter()
            ours = place(cluster.nodes, jobs, network).order
            took = time.perf_counter() - began
            shuffled = tuple(cluster.chance.sample(cluster.nodes, jobs))
            bounds.append(cluster.bound())
            for name, order in (("slurm", tuple(cluster.nodes)), ("random", shuffled), ("transom", ours)):
                seconds = took if name == "transom" else 0.0
                rows[name].append((*ring(cluster, order), tree(cluster, order), pipeline(cluster, order), seconds))
        for name, values in rows.items():
            slowest, mean, deep, line, took = (statistics.mean(column) for column in zip(*values, strict=True))
            plan = f"{took:.2f} s" if took else ""
            print(f"{kind:10} {jobs:>5} {name:8} {slowest:>13.2f} {mean:>10.3f} {deep:>6.1f} {line:>8.2f} {plan:>7}")
        print(f"{kind:10} {jobs:>5} {'bound':8} {'':>13} {statistics.mean(bounds):>10.3f}")


if __name__ == "__main__":
    main()
