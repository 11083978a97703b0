"""The records of the history, as they stand in its files: one JSON object a line. Pure.

A run's operator writes `Isolation`, `Over`, `Attempt` and `RunOver`, a person's command line `Lift`. Times are seconds
of the wall clock of whoever wrote the record. Records of another version that cannot be read are passed over.
"""

from __future__ import annotations

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
    """A run keeps away from a node, since `wall`.

    how: drained or excluded. until: when that ends by itself; None: when a person ends it. check: the check that found
    it, or "" where the run itself saw it; then `cause` says how (node_lost, rank_killed, ...). verdict: FAIL (proven)
    or SUSPECT. detail: who else drains the node, or why it could not be drained. folder: the run's. cluster: by its
    controller's own name; "": of a run that did not keep it. Nodes of two clusters may have the same names.
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
        """The check, or what the run itself saw."""
        return self.check or self.cause


@dataclass(frozen=True)
class Over(Record):
    """The run uses the node again, if it gets it: the isolation has expired, or was lifted or given up."""

    run: str
    node: str


@dataclass(frozen=True)
class Attempt(Record):
    """An attempt that began at `began` has ended. blamed: nodes that were to blame for faults in it, each once.

    cause: of its last fault; or how the run ended.
    """

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
    """What the run excluded it keeps away from no longer; what it drained stays so."""

    run: str


@dataclass(frozen=True)
class Lift(Record):
    """A person ended the isolations of these nodes, in all runs or in one."""

    who: str
    nodes: tuple[str, ...]
    run: str = ""


_KINDS: dict[str, type[Record]] = {cls.__name__: cls for cls in (Isolation, Over, Attempt, RunOver, Lift)}


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
