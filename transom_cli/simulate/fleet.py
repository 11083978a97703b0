"""The nodes of a simulated cluster: they fail, stay broken, are repaired and return. Pure.

Each node draws from a random stream of its own, so that two policies meet the same faults as long as they treat the
node alike.
"""

from collections.abc import Callable
from itertools import accumulate
from math import exp, inf
from random import Random

from transom_cli.core.node_hazard import ENDS, PUBLISHED
from transom_cli.simulate.model import ALARM, DAY, HOUR, LOST, Fault, Hazard, Outage, Scenario, Trace
from transom_cli.simulate.timeline import Timeline

_AFTER_RETURN = tuple(zip(ENDS, (rate / PUBLISHED.base for rate in PUBLISHED.rates()), strict=True))
INSPECTION = 4 * HOUR  # median, of a drained node with which nothing is wrong


class Node:
    """One node. up: it answers. broken: a fault that stays until the node is repaired. drained: in Slurm."""

    __slots__ = (
        "broken",
        "down_since",
        "drained",
        "in_repair",
        "name",
        "random",
        "rate",
        "returned",
        "taken",
        "turn",
        "up",
    )

    def __init__(self, name: str, random: Random, rate: float) -> None:
        self.name, self.random, self.rate = name, random, rate
        self.up, self.drained, self.in_repair = True, False, False
        self.broken: Fault | None = None
        self.down_since = inf
        self.returned: float | None = None
        self.taken = -inf  # until when another job has the node
        self.turn = 0  # of planned faults: only the newest counts


class Fleet:
    """All nodes.

    Args:
        failed, returned: Called for each fault and each return.
        noticed: The site has noticed that a node is broken and drains it. Whether the job uses the node.
    """

    def __init__(
        self, timeline: Timeline, scenario: Scenario, seed: int,
        failed: Callable[[Node, Fault], None], returned: Callable[[Node], None], noticed: Callable[[Node], bool],
    ) -> None:  # fmt: skip
        self._timeline, self._hazard = timeline, scenario.hazard
        self._failed, self._returned, self._noticed = failed, returned, noticed
        self._traced = scenario.trace is not None
        self._slurm_down = scenario.costs.slurm_down
        self.nodes: dict[str, Node] = {}
        faults = self._hazard.faults
        self._weights = list(accumulate(f.share for f in faults))
        for name in scenario.names:
            random = Random(f"{seed}/{name}")
            self.nodes[name] = Node(name, random, _rate(self._hazard, random))
        if scenario.trace is not None:
            self._plan_trace(scenario.trace)
            return
        for node in self.nodes.values():
            self._plan(node)
        hazard = self._hazard
        self._switches("switch", hazard.switch_per_day / DAY, hazard.switch_nodes, hazard.switch_outage)
        self._switches("power", hazard.power_per_day / DAY, hazard.power_nodes, hazard.power_outage)

    def free(self, node: Node) -> bool:
        """Whether Slurm would give the node to a job: it learns late that a node is down."""
        late = not node.up and self._timeline.now - node.down_since < self._slurm_down
        return (node.up or late) and not (node.drained or node.in_repair or node.taken > self._timeline.now)

    def drain(self, name: str) -> None:
        """Drain a node that the job has left: it is repaired, or inspected if nothing is wrong with it."""
        node = self.nodes[name]
        node.drained = True
        if node.in_repair or not node.up or (self._traced and node.broken):
            return  # it returns from that
        self._repair(node, node.broken.repair if node.broken else INSPECTION)

    # --- faults ---

    def _plan(self, node: Node) -> None:
        """Draw the time of the next fault from the node's hazard since its return."""
        node.turn += 1
        need = node.random.expovariate(1.0)
        when = since = node.returned if node.returned is not None else self._timeline.now
        for until, factor in _AFTER_RETURN if node.returned is not None and self._hazard.flapping else ():
            hazard = node.rate * factor * (since + until - when)
            if hazard >= need:
                self._timeline.at(when + need / (node.rate * factor), self._fault, node, node.turn)
                return
            need, when = need - hazard, since + until
        if node.rate:
            self._timeline.at(when + need / node.rate, self._fault, node, node.turn)

    def _fault(self, node: Node, turn: int) -> None:
        if turn != node.turn or not node.up or node.in_repair:
            return
        kind = node.random.choices(self._hazard.faults, cum_weights=self._weights)[0]
        self.hit(node, kind)
        if node.up:
            node.turn += 1
            self._timeline.after(node.random.expovariate(node.rate), self._fault, node, node.turn)

    def hit(self, node: Node, kind: Fault) -> None:
        """The node fails."""
        if kind.effect == LOST:
            node.up, node.down_since = False, self._timeline.now
            self._repair(node, kind.repair)
        elif kind.effect != ALARM and node.random.random() < kind.stays:
            node.broken = kind
            if self._hazard.notice:
                self._timeline.after(node.random.expovariate(1 / self._hazard.notice), self._notice, node, kind)
        self._failed(node, kind)

    def _notice(self, node: Node, kind: Fault) -> None:
        if node.broken is kind and not node.drained and not node.in_repair:
            node.drained = True
            if not self._noticed(node):
                self.drain(node.name)

    def _switches(self, name: str, rate: float, width: int, outage: float) -> None:
        """Plan the next event that cuts off neighbouring nodes."""
        if rate:
            after = self._timeline.random.expovariate(rate)
            self._timeline.after(after, self._cut_off, name, rate, width, outage)

    def _cut_off(self, name: str, rate: float, width: int, outage: float) -> None:
        nodes = list(self.nodes.values())
        first = self._timeline.random.randrange(0, len(nodes), width)
        for node in nodes[first : first + width]:
            if node.up and not node.in_repair:
                node.up, node.down_since, node.in_repair = False, self._timeline.now, True
                self._timeline.after(outage, self._return, node)
                self._failed(node, Fault(name, 0, LOST))
        self._switches(name, rate, width, outage)

    # --- repair ---

    def _repair(self, node: Node, median: float) -> None:
        node.in_repair = True
        node.turn += 1
        self._timeline.after(median * exp(node.random.gauss(0.0, self._hazard.repair_spread)), self._return, node)

    def _return(self, node: Node) -> None:
        node.up, node.in_repair, node.drained, node.broken = True, False, False, None
        node.down_since, node.returned = inf, self._timeline.now
        if not self._traced:
            self._plan(node)
        self._returned(node)

    # --- a trace ---

    def _plan_trace(self, trace: Trace) -> None:
        """Each node follows a recorded one, from a random day on. Further nodes follow the same ones again."""
        recorded: list[list[Outage]] = [[] for _ in range(trace.nodes)]
        numbers: dict[str, int] = {}
        for outage in trace.outages:
            recorded[numbers.setdefault(outage.node, len(numbers))].append(outage)
        random = self._timeline.random
        random.shuffle(recorded)
        shift = random.uniform(0.0, trace.length)
        for number, node in enumerate(self.nodes.values()):
            if number and number % trace.nodes == 0:
                shift = random.uniform(0.0, trace.length)
            for one in recorded[number % trace.nodes]:
                at = (one.begin - shift) % trace.length
                self._timeline.after(at, self._traced_fault, node, one.fault, one.end - one.begin)

    def _traced_fault(self, node: Node, fault: Fault, lasts: float) -> None:
        if node.in_repair:
            return
        if fault.effect == LOST:
            node.up, node.down_since, node.in_repair = False, self._timeline.now, True
        else:
            node.broken = fault
        self._failed(node, fault)
        self._timeline.after(lasts, self._return, node)


def _rate(hazard: Hazard, random: Random) -> float:
    """A node's own rate, per second."""
    mean = hazard.per_node_day / DAY
    return mean * random.gammavariate(1 / hazard.spread, hazard.spread) if hazard.spread else mean
