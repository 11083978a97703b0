"""The head's part: computing, all together, in twos and again, and the verdict on what came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.crew import Crew, Message
from transom_cli.health.finding import Finding
from transom_cli.health.probe import plan
from transom_cli.health.probe.blame import blame
from transom_cli.health.probe.judge import judge_probe
from transom_cli.health.probe.judge_speed import again, kinds_of
from transom_cli.health.probe.limits import Pace, ProbeLimits, pace_of
from transom_cli.health.probe.matrix import Cell, learned, matrix, went
from transom_cli.health.probe.reading import Norm, ProbeReading
from transom_cli.health.probe.shapes import Compute, Computed, Group, Hello, Link, Linked
from transom_cli.health.probe.speeds import norms
from transom_cli.health.probe.talk import Talk


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
    """One phase after the other, each with whoever is left."""

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
        self._names, self._limits, self._addresses = tuple(crew.nodes), limits, addresses
        self._looks: list[tuple[Computed, ...]] = []
        self._alls: list[Linked] = []
        self._pairs: list[Linked] = []
        budget = pace_of(about.tier, limits, gpu=False).budget
        self._talk = Talk(crew, clock, clock() + budget, other)
        self._talk.hello(limits.probe_hello)
        gpu = any(hello.device != "cpu" for hello in self._talk.hellos.values())
        self._pace: Pace = pace_of(about.tier, limits, gpu)

    def reading(self) -> ProbeReading:
        return ProbeReading(
            nodes=self._names,
            hellos=tuple(self._talk.hellos.values()),
            looks=tuple(self._looks),
            alls=tuple(self._alls),
            pairs=tuple(self._pairs),
            silent=tuple(self._talk.silent.values()),
            timings=tuple(self._talk.timings),
            untried=self._talk.untried,
        )

    def compute(self) -> None:
        """All at once; whoever was slow then is measured twice more, beside some who were not."""
        seconds = self._pace.compute_seconds
        nodes = self._talk.nodes()
        while nodes:
            phase = f"compute {len(self._looks) + 1}"
            patience = seconds + self._limits.probe_compute
            answers = self._talk.ask(phase, nodes, patience, lambda id, most: Compute(id, seconds, most))
            if answers is None:
                return
            self._looks.append(tuple(answer for answer in answers if isinstance(answer, Computed)))
            left = set(self._talk.nodes())
            nodes = tuple(node for node in again(self.reading(), self._limits, self.baseline) if node in left)

    def all_together(self) -> None:
        for number, groups in enumerate(plan.together(self._talk.nodes(), self._pace.together), 1):
            self._alls += self._link(f"all {number}", groups, rails=False, count=self._pace.all_bytes)

    def pairs(self) -> None:
        """Two partners each, and what `plan` thinks necessary; or a tournament. What was slow, or odd: again."""
        rounds = plan.tournament(self._talk.nodes(), self._pace.rounds)
        for number, pairs in enumerate(rounds, 1):
            self._meet(f"pairs {number}", pairs)
        for number in range(1, plan.ROUNDS + 1 if not rounds else 1):
            pairs = plan.next_round(self._talk.nodes(), went(self._cells()))
            if not pairs or not self._meet(f"pairs {number}", pairs):
                break
        for number, pairs in enumerate(plan.disjoint(self._doubtful()), 1):
            self._meet(f"again {number}", pairs)

    def _cells(self) -> tuple[Cell, ...]:
        return matrix(self._pairs, self._limits, self.baseline)

    def _doubtful(self) -> list[plan.Pair]:
        """Those that were slow with one another, once more: of two looks the better one counts. And, if there is time
        for it (a deadline each), those that failed while both were well with others."""
        found = blame(self._names, self._cells(), self._limits.probe_hot)
        shown = [cell for node in found.nodes for cell in node.cells if not node.failed]
        again = [c for c in (*shown, *found.links) if c.went is plan.Went.SLOW or self._pace.rounds]
        return [met.pair for met in went(again)]

    def _meet(self, phase: str, pairs: Sequence[plan.Pair]) -> bool:
        """False when there was no time, or nobody."""
        able = set(self._talk.nodes())
        groups = [pair for pair in pairs if able.issuperset(pair)]
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
        answers = self._talk.ask(
            phase,
            nodes,
            pace.deadline,
            lambda id, most: Link(id, phase, made, count, pace.trips, pace.link_seconds, most),
        )
        return [answer for answer in answers or () if isinstance(answer, Linked)]

    def _group(self, name: str, nodes: Sequence[str], rails: bool) -> Group:
        hellos = [self._talk.hellos[node, 0] for node in nodes]
        host = self._addresses.get(nodes[0]) or hellos[0].addresses[0]
        return Group(name, tuple(nodes), min(hello.of for hello in hellos), host, hellos[0].port, rails)
