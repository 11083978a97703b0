"""Findings of a node's devices, made one for each check; and those that blame too many, taken back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from transom_cli.health.edges import worst
from transom_cli.health.finding import Finding, Remedy, Verdict


def one_each(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst finding of each node and check, in the order in which they came; the first of equals."""
    kept: dict[tuple[str, str], Finding] = {}
    for found in findings:
        former = kept.setdefault((found.node, found.check), found)
        if worst((former, found)) is not former.verdict:
            kept[found.node, found.check] = found
    return tuple(kept.values())


def sober(findings: Sequence[Finding], nodes: int, most: float) -> tuple[Finding, ...]:
    """Where a check would keep more than the share `most` of the nodes out, what they share is at fault, not they."""
    blamed: dict[str, set[str]] = {}
    for found in findings:
        if found.verdict.bad:
            blamed.setdefault(found.check, set()).add(found.node)
    too_many = {check for check, these in blamed.items() if len(these) > most * nodes}

    def kept(found: Finding) -> Finding:
        if not found.verdict.bad or found.check not in too_many:
            return found
        said = f"{found.evidence}; so it is with {len(blamed[found.check])} of {nodes} nodes: not the node's own fault"
        return replace(found, verdict=Verdict.UNKNOWN, remedy=Remedy.NONE, evidence=said)

    return tuple(kept(found) for found in findings)
