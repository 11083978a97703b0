"""A generated synchronous training, as its agents would report it, with a fault that begins at a step, or none.

Every rank computes, then all wait for the slowest, and then for the network. A rank that computes longer makes the
others wait, and waits less itself: this is the only sign of the culprit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from transom_cli.diagnose.clue import Slow
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps

PHASES = {"data": 0.02, "forward": 0.3, "backward": 0.55, "optimizer": 0.05}  # seconds, of a step of about a second
NETWORK = 0.08
EVERY = 5.0


@dataclass
class Fault:
    """kind: what shall be found. ranks: who has it. by: the share that their phase gets longer by, or the network."""

    kind: Slow
    begins: int
    ranks: tuple[int, ...] = ()
    by: float = 0.3


@dataclass
class Training:
    """nodes x per_node ranks; noise: of each phase of each step, lognormal."""

    nodes: int = 4
    per_node: int = 4
    noise: float = 0.03
    seed: int = 0
    fault: Fault | None = None
    waits: bool = True
    save_every: int = 25
    _sums: list[dict[str, float]] = field(default_factory=list)

    def readings(self, steps: int) -> Iterator[tuple[int, dict[str, NodeSteps]]]:
        """(step, readings by node), as often as agents write."""
        random = Random(self.seed)
        world = self.nodes * self.per_node
        self._sums = [{} for _ in range(world)]
        at = reported = 0.0
        for step in range(steps):
            own = [self._own(random, rank, step) for rank in range(world)]
            longest = max(sum(spent.values()) for spent in own)
            network = NETWORK * random.lognormvariate(0, self.noise) * (1 + self._more(step, Slow.LINK))
            at += longest + network
            for sums, spent in zip(self._sums, own, strict=True):
                wait = longest - sum(spent.values()) + network
                told_as = "wait" if self.waits else "backward"
                for phase, seconds in (*spent.items(), (told_as, wait)):
                    sums[phase] = sums.get(phase, 0.0) + seconds
            if at - reported >= EVERY:
                reported = at
                yield step, {f"n{n}": self._node(n, step, at) for n in range(self.nodes)}

    def _own(self, random: Random, rank: int, step: int) -> dict[str, float]:
        spent = {phase: s * random.lognormvariate(0, self.noise) for phase, s in PHASES.items()}
        if step % self.save_every == self.save_every - 1:
            spent["checkpoint"] = 0.3 * random.lognormvariate(0, self.noise)
        fault = self.fault
        if fault is None or step < fault.begins or (fault.ranks and rank not in fault.ranks):
            return spent
        if fault.kind is Slow.STORAGE or fault.kind is Slow.LOADER:
            spent["data"] += fault.by
        elif fault.kind is not Slow.LINK:
            for phase in ("forward", "backward"):
                spent[phase] *= 1 + fault.by
        return spent

    def _more(self, step: int, kind: Slow) -> float:
        """Return the factor of the network's time that makes the step longer by the given share."""
        fault = self.fault
        wanted = fault is not None and fault.kind is kind and step >= fault.begins
        return fault.by / NETWORK if wanted and fault is not None else 0.0

    def _node(self, node: int, step: int, at: float) -> NodeSteps:
        ranks = range(node * self.per_node, (node + 1) * self.per_node)
        steps = tuple(RankSteps(rank, 0, step, at, seconds=dict(self._sums[rank])) for rank in ranks)
        return NodeSteps(f"n{node}", "1.0", steps)
