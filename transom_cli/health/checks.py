"""All checks of a node: who reads, who judges, how long a reading may take. Pure; readers are named, not imported.

A check is a reader, `read_x(about) -> XReading`, which touches the machine, and a judge, `judge_x(node, reading,
about, limits) -> findings`, which is pure. One reading may answer many questions, so a judge gives a finding for each
of them, by the names in `findings`; that is what settings and tables call a check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
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


CHECKS: tuple[NodeCheck, ...] = ()
OVERALL: tuple[str, ...] = ("answer",)  # findings that come of comparing nodes
LIMITS: tuple[type, ...] = tuple(dict.fromkeys(c.limits for c in CHECKS))


def finding_names() -> tuple[str, ...]:
    """What findings are called, those of all nodes together too. One that ends in a colon stands for many."""
    return tuple(sorted({n.rstrip(":") for c in CHECKS for n in c.findings} | set(OVERALL)))


def limit_names() -> tuple[str, ...]:
    return tuple(sorted({f.name for kind in LIMITS for f in dataclasses.fields(kind)}))


def of_tier(tier: Tier) -> tuple[NodeCheck, ...]:
    return tuple(c for c in CHECKS if tier.includes(c.tier))


def limits_of(check: NodeCheck, overrides: Mapping[str, float]) -> Any:
    """The check's thresholds, as the settings `health.limits` have them; names of other checks are left out."""
    known = {f.name for f in dataclasses.fields(check.limits)}
    return check.limits(**{name: value for name, value in overrides.items() if name in known})
