"""The probe's driver: asks the nodes' processes to compute, to meet all together and in pairs, and judges the answers.

No phase takes longer than there is time for.
"""

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from transom_cli.core.codec import BadRecord
from transom_cli.health.check import About
from transom_cli.health.finding import Finding
from transom_cli.health.probe import messages, plan
from transom_cli.health.probe.judge import judge_probe
from transom_cli.health.probe.matrix import Cell, blame, matrix, meetings
from transom_cli.health.probe.messages import (
    Answer,
    Compute,
    Computed,
    Device,
    Gone,
    Group,
    Hello,
    Link,
    Linked,
    ProbeReading,
    Request,
    Silent,
)
from transom_cli.health.probe.plan import Pace, ProbeLimits, pace_of
from transom_cli.health.probe.speed import again
from transom_cli.health.protocol import Transport

SLACK = 1.0  # seconds after a request's deadline for its answer to arrive
LEAST = 1.5  # seconds that must be left to start another phase

# Never repeated for the same processes: a number names keys in rendezvous stores, which forget nothing.
_NUMBERS = itertools.count(1)


class Processes:
    """The probe's processes: which are ready, which fell silent, and what each phase took.

    A node with a silent process gets no more requests.

    end: by `clock`, when everything must be over.
    """

    def __init__(self, transport: Transport, clock: Callable[[], float], end: float) -> None:
        self.hellos: dict[Device, Hello] = {}
        self.silent: dict[Device, Silent] = {}
        self.timings: list[tuple[str, float]] = []
        self.untried = ""
        self._transport, self._clock, self._end = transport, clock, end
        self._gone: dict[Device, str] = {}

    def wait_for_hello(self, timeout: float) -> None:
        """Wait for every process: the first of each node, and as many more as that one reports."""
        began = self._clock()
        self._transport.send({"do": "probe", "request": messages.HELLO})
        waiting = dict.fromkeys((node, 0) for node in self._transport.nodes)
        while waiting and (received := self._next(min(began + timeout, self._end))) is not None:
            device, answer = received
            self._note(device, answer)
            waiting.pop(device, None)
            if isinstance(answer, Hello):
                others = ((device[0], index) for index in range(1, answer.of))
                waiting.update(dict.fromkeys(one for one in others if one not in self.hellos and one not in self._gone))
        self._finish("hello", began, waiting.keys() | {one for one in self._gone if one not in self.hellos})

    def nodes(self) -> tuple[str, ...]:
        """Return nodes whose processes are all ready."""
        out = {node for node, _ in self.silent} | {hello.node for hello in self.hellos.values() if hello.error}
        came = {node for node, _ in self.hellos}
        return tuple(node for node in self._transport.nodes if node in came and node not in out)

    def ask(
        self, phase: str, nodes: Collection[str], deadline: float, make: Callable[[int, float], Request]
    ) -> list[Answer] | None:
        """Return the answers of the nodes' processes; those without one count as silent. None: no time was left.

        Args:
            make: returns the request, given its number and the seconds that it may take.
        """
        began = self._clock()
        deadline = min(deadline, self._end - began - SLACK)
        if deadline < LEAST:
            self.untried = self.untried or f"no time was left for {phase}"
            return None
        number, wanted = next(_NUMBERS), set(nodes)
        waiting = {device: None for device in self.hellos if device[0] in wanted and device not in self._gone}
        gone = {device for device in self._gone if device[0] in wanted}
        request = messages.request_to_json(make(number, deadline))
        self._transport.send({"do": "probe", "request": request}, tuple(nodes))
        answers: list[Answer] = []
        while waiting and (received := self._next(began + deadline + SLACK)) is not None:
            device, answer = received
            if device in waiting and isinstance(answer, (Computed, Linked)) and answer.id == number:
                del waiting[device]
                answers.append(answer)
                continue
            self._note(device, answer)
            if device in waiting and isinstance(answer, Gone):
                del waiting[device]
                gone.add(device)
        self._finish(phase, began, waiting.keys() | gone)
        return answers

    def _finish(self, phase: str, began: float, silent: Collection[Device]) -> None:
        took = self._clock() - began
        self.timings.append((phase, took))
        for node, index in sorted(silent):
            self.silent[node, index] = Silent(node, index, phase, took, self._gone.get((node, index), ""))

    def _note(self, device: Device, answer: Answer) -> None:
        """Note any answer other than the expected one: a hello, an end, or a late answer."""
        if isinstance(answer, Hello):
            self.hellos[device] = answer
        elif isinstance(answer, Gone):
            self._gone[device] = answer.error
        elif device in self.silent:
            self.silent[device] = replace(self.silent[device], late=True)

    def _next(self, end: float) -> tuple[Device, Answer] | None:
        """Return the next answer of a probe process; None if none comes before `end`."""
        while (remaining := end - self._clock()) > 0:
            message = self._transport.receive(remaining)
            if message is None:
                return None
            if message.get("re") != "probe":
                continue
            try:
                answer = messages.answer_from_json(message["answer"])
                return (str(message["node"]), int(message["index"])), answer
            except (BadRecord, KeyError, TypeError, ValueError, AttributeError):
                continue  # not from this version
        return None


@dataclass(frozen=True)
class ProbeResult:
    """findings: one per node and check. reading: for recording."""

    findings: tuple[Finding, ...]
    matrix: tuple[Cell, ...]
    reading: ProbeReading

    @property
    def timings(self) -> tuple[tuple[str, float], ...]:
        return self.reading.timings


def drive(
    transport: Transport,
    about: About,
    limits: ProbeLimits,
    *,
    addresses: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ProbeResult:
    """Probe all nodes of the transport within the tier's time, even if they hang.

    Args:
        addresses: at which the nodes reach each other (Slurm's NodeAddr); a node without one reports its own.
    """
    driver = _Driver(transport, about, limits, dict(addresses or {}), clock)
    driver.compute()
    driver.all_together()
    driver.pairs()
    reading = driver.reading()
    return ProbeResult(judge_probe(reading, about, limits), matrix(reading.pairs, limits), reading)


class _Driver:
    """Runs one phase after another, each with the nodes that still answer."""

    def __init__(
        self,
        transport: Transport,
        about: About,
        limits: ProbeLimits,
        addresses: dict[str, str],
        clock: Callable[[], float],
    ) -> None:
        self._names, self._limits, self._addresses = tuple(transport.nodes), limits, addresses
        self._looks: list[tuple[Computed, ...]] = []
        self._alls: list[Linked] = []
        self._pairs: list[Linked] = []
        budget = pace_of(about.tier, limits, gpu=False).budget
        self._processes = Processes(transport, clock, clock() + budget)
        self._processes.wait_for_hello(limits.probe_hello)
        gpu = any(hello.device != "cpu" for hello in self._processes.hellos.values())
        self._pace: Pace = pace_of(about.tier, limits, gpu)

    def reading(self) -> ProbeReading:
        return ProbeReading(
            nodes=self._names,
            hellos=tuple(self._processes.hellos.values()),
            looks=tuple(self._looks),
            alls=tuple(self._alls),
            pairs=tuple(self._pairs),
            silent=tuple(self._processes.silent.values()),
            timings=tuple(self._processes.timings),
            untried=self._processes.untried,
        )

    def compute(self) -> None:
        """Measure all nodes; then measure slow ones twice more, beside some that were not slow."""
        seconds = self._pace.compute_seconds
        nodes = self._processes.nodes()
        while nodes:
            phase = f"compute {len(self._looks) + 1}"
            deadline = seconds + self._limits.probe_compute
            answers = self._processes.ask(phase, nodes, deadline, lambda id, most: Compute(id, seconds, most))
            if answers is None:
                return
            self._looks.append(tuple(answer for answer in answers if isinstance(answer, Computed)))
            ready = set(self._processes.nodes())
            nodes = tuple(node for node in again(self.reading(), self._limits) if node in ready)

    def all_together(self) -> None:
        for number, groups in enumerate(plan.together(self._processes.nodes(), self._pace.together), 1):
            self._alls += self._link(f"all {number}", groups, rails=False, count=self._pace.all_bytes)

    def pairs(self) -> None:
        """Let each node meet two partners and more as `plan` requires, or play a tournament; then repeat bad pairs."""
        rounds = plan.tournament(self._processes.nodes(), self._pace.rounds)
        for number, pairs in enumerate(rounds, 1):
            self._meet(f"pairs {number}", pairs)
        for number in range(1, plan.ROUNDS + 1 if not rounds else 1):
            pairs = plan.next_round(self._processes.nodes(), meetings(self._cells()))
            if not pairs or not self._meet(f"pairs {number}", pairs):
                break
        for number, pairs in enumerate(plan.disjoint(self._doubtful()), 1):
            self._meet(f"again {number}", pairs)

    def _cells(self) -> tuple[Cell, ...]:
        return matrix(self._pairs, self._limits)

    def _doubtful(self) -> list[plan.Pair]:
        """Return pairs to measure again, because the better of two measurements counts: slow ones, and, in a deep run
        (each costs a deadline), pairs that failed while both succeeded with others."""
        found = blame(self._names, self._cells(), self._limits.probe_hot)
        shown = [cell for node in found.nodes for cell in node.cells if not node.failed]
        repeated = [c for c in (*shown, *found.links) if c.outcome is plan.Outcome.SLOW or self._pace.rounds]
        return [met.pair for met in meetings(repeated)]

    def _meet(self, phase: str, pairs: Sequence[plan.Pair]) -> bool:
        """Return False if no time or no node was left."""
        ready = set(self._processes.nodes())
        groups = [pair for pair in pairs if ready.issuperset(pair)]
        answers = self._link(phase, groups, rails=True, count=self._pace.pair_bytes)
        self._pairs += answers
        return bool(answers)

    def _link(self, phase: str, groups: Sequence[Sequence[str]], *, rails: bool, count: int) -> list[Linked]:
        made = tuple(self._group(f"{number}", members, rails) for number, members in enumerate(groups))
        made = tuple(group for group in made if len(group.nodes) * group.devices > 1)
        if not made:
            return []
        nodes = tuple(node for group in made for node in group.nodes)
        pace = self._pace
        answers = self._processes.ask(
            phase,
            nodes,
            pace.deadline,
            lambda id, most: Link(id, phase, made, count, pace.trips, pace.link_seconds, most),
        )
        return [answer for answer in answers or () if isinstance(answer, Linked)]

    def _group(self, name: str, nodes: Sequence[str], rails: bool) -> Group:
        hellos = [self._processes.hellos[node, 0] for node in nodes]
        host = self._addresses.get(nodes[0]) or hellos[0].addresses[0]
        return Group(
            name, tuple(nodes), min(hello.of for hello in hellos), host, hellos[0].port, rails, hellos[0].password
        )
