"""The head's part: ask all nodes, wait no longer than there is time, and judge what came back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.core.codec import BadRecord
from transom_cli.health.about import About
from transom_cli.health.crew import Crew, Message
from transom_cli.health.finding import Finding
from transom_cli.health.probe import plan, shapes
from transom_cli.health.probe.blame import blame
from transom_cli.health.probe.judge import judge_probe
from transom_cli.health.probe.judge_speed import again, kinds_of
from transom_cli.health.probe.limits import Pace, ProbeLimits, pace_of
from transom_cli.health.probe.matrix import Cell, learned, matrix, went
from transom_cli.health.probe.reading import Norm, ProbeReading, Silent
from transom_cli.health.probe.shapes import Answer, Compute, Computed, Gone, Group, Hello, Link, Linked
from transom_cli.health.probe.speeds import norms

SLACK = 1.0  # seconds beyond an ask's deadline that an answer may be on its way
LEAST = 1.5  # seconds that must be left for another phase to begin

# Never the same twice for the same processes: under it they meet in stores that forget nothing.
_NUMBERS = itertools.count(1)

Device = tuple[str, int]


@dataclass(frozen=True)
class ProbeResult:
    """findings: one of each node for each of `judge.CHECKS`. matrix: C4's. norms: what was usual, for later runs'
    baseline. reading: all of it, to be recorded; `judge_probe` judges it anywhere."""

    findings: tuple[Finding, ...]
    matrix: tuple[Cell, ...]
    norms: tuple[Norm, ...]
    reading: ProbeReading

    @property
    def hellos(self) -> tuple[Hello, ...]:
        return self.reading.hellos

    @property
    def timings(self) -> tuple[tuple[str, float], ...]:
        return self.reading.timings


def drive(
    crew: Crew,
    about: About,
    limits: ProbeLimits,
    *,
    addresses: Mapping[str, str] | None = None,
    baseline: Iterable[Norm] = (),
    other: Callable[[Message], None] = lambda message: None,
    clock: Callable[[], float] = time.monotonic,
) -> ProbeResult:
    """Probe all nodes of the crew, within the tier's time, whatever they do.

    addresses: under which the nodes reach one another (Slurm's NodeAddr); a node without one is taken at its own word.
    other: gets each message of the crew that is no probe's.
    """
    head = _Head(crew, about, limits, dict(addresses or {}), tuple(baseline), other, clock)
    head.hello()
    head.compute()
    head.all_together()
    head.pairs()
    reading = head.reading()
    cells = matrix(reading.pairs, limits, head.baseline)
    return ProbeResult(
        findings=judge_probe(reading, about, limits, head.baseline),
        matrix=cells,
        norms=_norms(reading, cells),
        reading=reading,
    )


def _norms(reading: ProbeReading, cells: tuple[Cell, ...]) -> tuple[Norm, ...]:
    first = reading.looks[0] if reading.looks else ()
    usual = learned(cells)
    return (*norms(first, kinds_of(reading)).values(), *(norm for norm in (usual.rate, usual.delay) if norm))


class _Head:
    """What was asked and answered so far. A node of which a process fell silent is asked no more."""

    def __init__(
        self,
        crew: Crew,
        about: About,
        limits: ProbeLimits,
        addresses: dict[str, str],
        baseline: tuple[Norm, ...],
        other: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.baseline = baseline
        self._crew, self._limits, self._other, self._clock = crew, limits, other, clock
        self._addresses, self._tier = addresses, about.tier
        self._pace: Pace = pace_of(about.tier, limits, gpu=False)
        self._end = clock() + self._pace.budget
        self._hellos: dict[Device, Hello] = {}
        self._gone: dict[Device, str] = {}
        self._silent: dict[Device, Silent] = {}
        self._looks: list[tuple[Computed, ...]] = []
        self._alls: list[Linked] = []
        self._pairs: list[Linked] = []
        self._timings: list[tuple[str, float]] = []
        self._untried = ""

    def reading(self) -> ProbeReading:
        return ProbeReading(
            nodes=tuple(self._crew.nodes),
            hellos=tuple(self._hellos.values()),
            looks=tuple(self._looks),
            alls=tuple(self._alls),
            pairs=tuple(self._pairs),
            silent=tuple(self._silent.values()),
            timings=tuple(self._timings),
            untried=self._untried,
        )

    def hello(self) -> None:
        begun = self._clock()
        self._crew.send({"do": "probe", "ask": shapes.HELLO})
        end = min(begun + self._limits.probe_hello, self._end)
        missing = set(self._missing())
        while missing and (got := self._next(end)) is not None:
            self._late(*got)
            missing.discard(got[0])
            if isinstance(got[1], Hello):
                its = {(got[1].node, i) for i in range(1, got[1].of)}
                missing |= its - self._hellos.keys() - self._gone.keys()
        for node, index in self._missing():
            error = self._gone.get((node, index), "")
            self._silent[node, index] = Silent(node, index, "hello", self._clock() - begun, error)
        self._timings.append(("hello", self._clock() - begun))
        if any(hello.device != "cpu" for hello in self._hellos.values()):
            self._pace = pace_of(self._tier, self._limits, gpu=True)

    def _missing(self) -> list[Device]:
        """Processes that are yet to say hello; of a node that has not said anything, the first is waited for."""
        expected = [(node, 0) for node in self._crew.nodes]
        expected += [(h.node, i) for h in self._hellos.values() for i in range(1, h.of)]
        return [d for d in dict.fromkeys(expected) if d not in self._hellos and d not in self._gone]

    def compute(self) -> None:
        """All at once; whoever was slow then is measured twice more, beside some who were not."""
        nodes = self._nodes()
        while nodes:
            deadline = self._pace.compute_seconds + self._limits.probe_compute
            phase = f"compute {len(self._looks) + 1}"
            answers = self._ask(phase, nodes, deadline, lambda id, most: Compute(id, self._pace.compute_seconds, most))
            if answers is None:
                return
            self._looks.append(tuple(answer for answer in answers.values() if isinstance(answer, Computed)))
            nodes = tuple(n for n in again(self.reading(), self._limits, self.baseline) if n in self._nodes())

    def all_together(self) -> None:
        for number, groups in enumerate(plan.together(self._nodes(), self._pace.together), 1):
            self._alls += self._link(f"all {number}", groups, rails=False, count=self._pace.all_bytes)

    def pairs(self) -> None:
        """Two partners each, and what `plan` thinks necessary; or a tournament. Single links that were bad: again."""
        rounds = plan.tournament(self._nodes(), self._pace.rounds)
        for number, pairs in enumerate(rounds, 1):
            self._meet(f"pairs {number}", pairs)
        for number in range(1, plan.ROUNDS + 1 if not rounds else 1):
            pairs = plan.next_round(self._nodes(), self._met())
            if not pairs or not self._meet(f"pairs {number}", pairs):
                break
        for number, pairs in enumerate(plan.disjoint(self._doubtful()), 1):
            self._meet(f"again {number}", pairs)

    def _met(self) -> tuple[plan.Met, ...]:
        return went(matrix(self._pairs, self._limits, self.baseline))

    def _doubtful(self) -> list[plan.Pair]:
        """Those that were slow with one another, once more: of two looks the better one counts. And, if there is time
        for it (a deadline each), those that failed while both were well with others."""
        found = blame(self._crew.nodes, matrix(self._pairs, self._limits, self.baseline), self._limits.probe_hot)
        shown = [cell for node in found.nodes for cell in node.cells if not node.failed]
        again = [c for c in (*shown, *found.links) if c.went is plan.Went.SLOW or self._pace.rounds]
        return [met.pair for met in went(again)]

    def _meet(self, phase: str, pairs: Sequence[plan.Pair]) -> bool:
        """False when there was no time."""
        able = set(self._nodes())
        groups = [pair for pair in pairs if able.issuperset(pair)]
        answers = self._link(phase, groups, rails=True, count=self._pace.pair_bytes)
        self._pairs += answers
        return bool(answers)

    def _nodes(self) -> tuple[str, ...]:
        """Those of which every process has said hello, and none fell silent or was unable."""
        out = {node for node, _ in self._silent} | {h.node for h in self._hellos.values() if h.error}
        came = {h.node for h in self._hellos.values()}
        return tuple(node for node in self._crew.nodes if node in came and node not in out)

    def _link(self, phase: str, groups: Sequence[Sequence[str]], *, rails: bool, count: int) -> list[Linked]:
        devices: dict[str, int] = {}
        for hello in self._hellos.values():
            devices[hello.node] = max(hello.of, devices.get(hello.node, 0))
        made = tuple(self._group(f"{n}", members, rails, devices) for n, members in enumerate(groups))
        made = tuple(group for group in made if len(group.nodes) * group.devices > 1)
        if not made:
            return []
        nodes = tuple(node for group in made for node in group.nodes)
        pace = self._pace
        answers = self._ask(
            phase,
            nodes,
            pace.deadline,
            lambda id, most: Link(id, phase, made, count, pace.trips, pace.link_seconds, most),
        )
        return [answer for answer in (answers or {}).values() if isinstance(answer, Linked)]

    def _group(self, name: str, nodes: Sequence[str], rails: bool, devices: Mapping[str, int]) -> Group:
        first = self._hellos[nodes[0], 0]
        host = self._addresses.get(nodes[0]) or first.addresses[0]
        return Group(name, tuple(nodes), min(devices[node] for node in nodes), host, first.port, rails)

    def _ask(
        self, phase: str, nodes: Sequence[str], deadline: float, make: Callable[[int, float], shapes.Ask]
    ) -> dict[Device, Answer] | None:
        """The answers of the nodes' processes; who gives none is silent from now on. None: there was no time."""
        begun = self._clock()
        deadline = min(deadline, self._end - begun - SLACK)
        if deadline < LEAST:
            self._untried = self._untried or f"no time was left for {phase}"
            return None
        number = next(_NUMBERS)
        self._crew.send({"do": "probe", "ask": shapes.ask_to_json(make(number, deadline))}, nodes)
        waiting = {(h.node, h.index): None for h in self._hellos.values() if h.node in nodes}
        answers: dict[Device, Answer] = {}
        owed = waiting.keys() - self._gone.keys()
        while owed:
            got = self._next(begun + deadline + SLACK)
            if got is None:
                break
            device, answer = got
            if device in waiting and isinstance(answer, (Computed, Linked)) and answer.id == number:
                answers[device] = answer
                owed.discard(device)
            else:
                self._late(device, answer)
                if isinstance(answer, Gone):
                    owed.discard(device)
        took = self._clock() - begun
        for node, index in waiting:
            if (node, index) not in answers:
                error = self._gone.get((node, index), "")
                self._silent[node, index] = Silent(node, index, phase, took, error)
        self._timings.append((phase, took))
        return answers

    def _late(self, device: Device, answer: Answer) -> None:
        """Whatever is not the answer to the last ask: a hello, an end, or one that nobody waits for any more."""
        if isinstance(answer, Hello):
            self._hellos[device] = answer
        elif isinstance(answer, Gone):
            self._gone[device] = answer.error
        elif device in self._silent:
            old = self._silent[device]
            self._silent[device] = Silent(old.node, old.index, old.phase, old.seconds, old.error, late=True)

    def _next(self, end: float) -> tuple[Device, Answer] | None:
        """The next answer of a probe process before `end`; None when none came."""
        while (left := end - self._clock()) > 0:
            message = self._crew.receive(left)
            if message is None:
                return None
            if message.get("re") != "probe":
                self._other(message)
                continue
            try:
                answer = shapes.answer_from_json(message["answer"])
                return (str(message["node"]), int(message["index"])), answer
            except (BadRecord, KeyError, TypeError, ValueError, AttributeError):
                continue  # not one of this version's
        return None
