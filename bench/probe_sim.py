"""Simulated nodes that answer a probe in simulated time, to measure and test how its plan scales.

`SimCrew` is a `Transport` whose clock moves only while something waits. A healthy rank is modelled on gloo over one
machine's loopback; `World` says which nodes and links are faulty.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from transom_cli.health.probe import bits as exact
from transom_cli.health.probe.messages import (
    DONE,
    Answer,
    Compute,
    Computed,
    Group,
    Hello,
    Link,
    Linked,
    Request,
    Sent,
    answer_to_json,
    request_from_json,
)
from transom_cli.health.protocol import Message

KERNELS = {"gemm float32": 9e10, "attention float32": 6e10, "reduce float32": 1.3e10, "copy": 3.6e10}
DIGESTS = {"gemm float32": "a1", "attention float32": "b2", "reduce float32": "c3"}
IMPORT = 3.0  # seconds until a process says hello
WARM = 0.2  # seconds of computing before the window opens
CONNECT = 0.004  # seconds for each other member of a group, which gloo connects all with all
MESSAGE = 0.0002  # seconds that the head is busy with each message it sends or receives
RATE, DELAY = 2e9, 5e-5


@dataclass
class World:
    """What is wrong. silent: nodes by the phase in which they fall silent, and from then on. slow: share of the usual
    speed. bits: nodes by the kernel that they compute wrongly. dead: pairs that reach each other no more. throttled:
    share of the bandwidth, by sender and receiver; senders, receivers: by either, to or from everyone. noise: the
    standard deviation of the logarithm of everything that is measured.
    """

    silent: dict[str, str] = field(default_factory=dict)
    torchless: frozenset[str] = frozenset()
    slow: dict[str, float] = field(default_factory=dict)
    bits: dict[str, str] = field(default_factory=dict)
    cut_off: frozenset[str] = frozenset()
    dead: frozenset[frozenset[str]] = frozenset()
    throttled: dict[tuple[str, str], float] = field(default_factory=dict)
    senders: dict[str, float] = field(default_factory=dict)
    receivers: dict[str, float] = field(default_factory=dict)
    devices: int = 1
    noise: float = 0.05
    seed: int = 0

    def reached(self, first: str, second: str) -> bool:
        return not {first, second} & self.cut_off and frozenset((first, second)) not in self.dead

    def rate(self, src: str, dst: str) -> float:
        share = self.throttled.get((src, dst), 1.0) * self.senders.get(src, 1.0) * self.receivers.get(dst, 1.0)
        return RATE * share


class SimCrew:
    """messages: how many went either way. now: its clock, to be given to `drive`. met: the pairs, in their order."""

    def __init__(self, nodes: Sequence[str], world: World | None = None) -> None:
        self.nodes = tuple(nodes)
        self.world = world or World()
        self.time = 0.0
        self.messages = 0
        self.met: list[tuple[str, ...]] = []
        self._random = random.Random(self.world.seed)
        self._due: list[tuple[float, int, Message]] = []
        self._number = 0
        self._quiet: set[str] = set()

    def now(self) -> float:
        return self.time

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        self.messages += 1  # counted once: srun passes its input to all
        self.time += MESSAGE
        ask = request_from_json(message["request"])
        group_of = {node: group for group in ask.groups for node in group.nodes} if isinstance(ask, Link) else {}
        for node in to or self.nodes:
            for index in range(self.world.devices):
                self._ask(node, index, ask, group_of.get(node))

    def receive(self, timeout: float) -> Message | None:
        end = self.time + timeout
        if not self._due or self._due[0][0] > end:
            self.time = end
            return None
        at, _, message = heapq.heappop(self._due)
        self.messages += 1
        self.time = max(self.time, at) + MESSAGE
        return message

    def close(self) -> None:
        self._due.clear()

    def _ask(self, node: str, index: int, ask: Request | None, group: Group | None) -> None:
        phase = "hello" if ask is None else "compute" if isinstance(ask, Compute) else ask.phase
        if self.world.silent.get(node) == phase.split()[0]:
            self._quiet.add(node)
        if node in self._quiet:
            return
        if ask is None:
            self._say(node, index, IMPORT * self._noise(), self._hello(node, index))
        elif isinstance(ask, Compute):
            self._say(node, index, WARM + ask.seconds, self._computed(node, index, ask))
        elif group is not None:
            answer, took = self._linked(node, index, ask, group)
            self._say(node, index, took, answer)

    def _say(self, node: str, index: int, after: float, answer: Answer) -> None:
        self._number += 1
        message = {"re": "probe", "node": node, "index": index, "answer": answer_to_json(answer)}
        heapq.heappush(self._due, (self.time + after, self._number, message))

    def _noise(self) -> float:
        return self._random.lognormvariate(0.0, self.world.noise)

    def _hello(self, node: str, index: int) -> Hello:
        device = "cpu" if self.world.devices == 1 else f"cuda:{index}"
        if node in self.world.torchless:
            return Hello(node, index, device, self.world.devices, error="ModuleNotFoundError: No module named 'torch'")
        versions = (("torch", "2.13.0"),)
        return Hello(node, index, device, self.world.devices, "chip", 4000 + index, "", ("10.0.0.1",), versions)

    def _computed(self, node: str, index: int, ask: Compute) -> Computed:
        share, wrong = self.world.slow.get(node, 1.0), self.world.bits.get(node, "none")
        digests = {**{one.name: exact.ANSWERS[one.name] for one in exact.CPU}, **DIGESTS}
        shown = tuple((name, f"bad {node}" if name.startswith(wrong) else bits) for name, bits in digests.items())
        rates = tuple((name, rate * share * self._noise()) for name, rate in KERNELS.items())
        return Computed(node, index, ask.id, shown, rates, 100)

    def _linked(self, node: str, index: int, ask: Link, group: Group) -> tuple[Linked, float]:
        if index == 0 and group.rails and node == group.nodes[0]:
            self.met.append(group.nodes)
        others = [other for other in group.nodes if other != node]
        if any(other in self._quiet or not self.world.reached(node, other) for other in others):
            absent = tuple((other, index) for other in others if other in self._quiet)
            peer = others[0] if group.rails else ""
            error = "did not arrive" if absent else "not finished"
            return Linked(node, index, ask.id, ask.phase, peer, "meeting", absent=absent, error=error), ask.deadline / 2
        connecting = CONNECT * len(group.nodes) * self._noise()
        if not group.rails:
            return Linked(node, index, ask.id, ask.phase, "", DONE, 0.01, 1e8), connecting + 0.03
        rate, delay = self.world.rate(node, others[0]) * self._noise(), DELAY * self._noise()
        reply = Linked(node, index, ask.id, ask.phase, others[0], DONE, sent=Sent(others[0], delay, rate))
        return reply, connecting + 2 * ask.seconds
