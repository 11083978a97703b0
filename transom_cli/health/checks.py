"""All checks of a node: who reads, who judges, how long a reading may take.

A check is a reader, `read_x(about) -> XReading`, which touches the machine, and a judge, `judge_x(node, reading,
about, limits) -> findings`, which is pure. One reading may answer many questions, so a judge gives a finding for each
of them, by the names in `findings`; that is what settings and tables call a check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.health.about import About, Tier
from transom_cli.health.finding import Finding

Judge = Callable[[str, Any, About, Any], tuple[Finding, ...]]


@dataclass(frozen=True)
class NodeCheck:
    """reader: "module:function". reading: the frozen dataclass that it returns, of plain values, tuples and such
    dataclasses alone, so that it can be recorded. limits: the frozen dataclass of the judge's thresholds. seconds: how
    long a reading may take; beyond, it counts as hung, and `overdue` says what that tells of the node. changes: judges
    (node, former reading, reading, seconds between them, about, limits) where the node is watched: what has happened.
    """

    name: str
    reader: str
    judge: Judge
    reading: type
    limits: type
    seconds: float
    tier: Tier
    findings: tuple[str, ...]
    overdue: Callable[[str, float, About], Finding]
    changes: Callable[[str, Any, Any, float, About, Any], tuple[Finding, ...]] | None = None


def unwanted(check: str, off: Iterable[str]) -> bool:
    """Whether the settings `health.off` name it: as a whole, or "mount" for every "mount:..."."""
    return check in off or check.partition(":")[0] in off


def limits_of(kind: type, overrides: Mapping[str, float]) -> Any:
    """Thresholds as the settings `health.limits` have them; names of other checks are left out."""
    known = {f.name for f in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in overrides.items() if name in known})
