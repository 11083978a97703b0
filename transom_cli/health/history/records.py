"""The records of the node history: one JSON object per line. Pure.

A run's operator writes `Isolation`, `Over`, `Attempt` and `RunOver`; `transom nodes --lift` writes `Lift`; each probe
writes `Measured`. Times are seconds of the writer's wall clock. Unreadable records of other versions are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    wall: float


@dataclass(frozen=True)
class Isolation(Record):
    """A run stopped using a node, at `wall`.

    how: drained or excluded. until: when the isolation expires; None: when a person ends it. check: the check that
    found the fault; "" if the run itself saw it, as `cause` says (node_lost, rank_killed, ...). verdict: FAIL (proven)
    or SUSPECT. detail: who else drained the node, or why it could not be drained. folder: the run directory. cluster:
    its ClusterName, "" if unknown; nodes of two clusters may have the same name.
    """

    run: str
    folder: str
    node: str
    how: str
    until: float | None
    cause: str
    check: str
    verdict: str
    evidence: str
    remedy: str = "none"
    device: str = ""
    serial: str = ""
    detail: str = ""
    cluster: str = ""

    @property
    def proven(self) -> bool:
        return self.verdict == "FAIL"

    @property
    def what(self) -> str:
        """The check that found the fault, or what the run itself saw."""
        return self.check or self.cause


@dataclass(frozen=True)
class Over(Record):
    """The run may use the node again: the isolation expired, was lifted, or was dropped."""

    run: str
    node: str


@dataclass(frozen=True)
class Attempt(Record):
    """An attempt that began at `began` has ended. blamed: nodes at fault in it, each once. cause: of its last fault, or
    how the run ended."""

    run: str
    attempt: str
    began: float
    nodes: tuple[str, ...]
    blamed: tuple[str, ...] = ()
    cause: str = ""

    @property
    def hours(self) -> float:
        return max(0.0, self.wall - self.began) / 3600.0


@dataclass(frozen=True)
class RunOver(Record):
    """The run has ended. Its exclusions end with it; nodes that it drained stay drained."""

    run: str


@dataclass(frozen=True)
class Lift(Record):
    """A person ended the isolations of these nodes, in all runs or in `run`."""

    who: str
    nodes: tuple[str, ...]
    run: str = ""


@dataclass(frozen=True)
class Measured(Record):
    """A probe measured a node. kind: its model. rates: by kernel, in FLOP/s or bytes/s, of the slowest device."""

    node: str
    kind: str
    rates: tuple[tuple[str, float], ...]


_KINDS: dict[str, type[Record]] = {cls.__name__: cls for cls in (Isolation, Over, Attempt, RunOver, Lift, Measured)}


def to_json(record: Record) -> dict[str, Any]:
    return {"type": type(record).__name__, "schema": SCHEMA, **plain(record)}


def from_json(data: Mapping[str, Any]) -> Record | None:
    kind = _KINDS.get(str(data.get("type")))
    if kind is None or data.get("schema") != SCHEMA:
        return None
    try:
        return build(kind, data)
    except BadRecord:
        return None
