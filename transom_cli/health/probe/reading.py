"""All that a probe of a job's nodes has seen, in the order in which it was asked. Pure; it can be recorded."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.probe.shapes import Computed, Hello, Linked


@dataclass(frozen=True)
class Silent:
    """A process that gave no answer. phase: "hello", "compute", "all 1", "pairs 1". seconds: how long it was waited
    for. error: how it ended, if it did. late: it answered after all, when nobody waited any more.
    """

    node: str
    index: int
    phase: str
    seconds: float
    error: str = ""
    late: bool = False


@dataclass(frozen=True)
class Norm:
    """What is usual for devices of one kind: of so many, by the kernel's name, or "link rate" and "link delay".

    spread: the standard deviation of their logarithms, so that 0.1 is about 10 %.
    """

    kind: str
    name: str
    median: float
    spread: float
    count: int


@dataclass(frozen=True)
class ProbeReading:
    """nodes: whom it asked. looks: each a measurement of the computing, the first of all nodes, further ones of those
    that were slow and of some beside them. alls, pairs: answers of the links, of groups and of twos. timings: seconds
    by phase. untried: why some phases were left out (no time left).
    """

    nodes: tuple[str, ...]
    hellos: tuple[Hello, ...] = ()
    looks: tuple[tuple[Computed, ...], ...] = ()
    alls: tuple[Linked, ...] = ()
    pairs: tuple[Linked, ...] = ()
    silent: tuple[Silent, ...] = ()
    timings: tuple[tuple[str, float], ...] = ()
    untried: str = ""

    def by_device(self) -> dict[tuple[str, int], Hello]:
        return {(hello.node, hello.index): hello for hello in self.hellos}
