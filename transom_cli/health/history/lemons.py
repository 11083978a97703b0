"""Which nodes and devices come back again and again: judged by the rate of all nodes together, not by counts. Pure.

A node that ran twice as long may fail twice as often. At the rate of all nodes' failures by their hours, the number of
failures of a good one is a Poisson number; a node whose number would be a rare chance is a lemon. It is told, and never
isolated for that: the rate also holds what was not the node's fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.history.fold import NodeHistory, NodeUse
from transom_cli.plural import several

CHECK = "history"


@dataclass(frozen=True)
class HistoryLimits:
    """history_chance: a node is a lemon where so many failures, or more, are less likely than that by chance alone.
    history_failures: in different attempts, the least for which that is asked.
    """

    history_chance: float = 0.01
    history_failures: int = 2


def judge_history(history: NodeHistory, limits: HistoryLimits) -> tuple[Finding, ...]:
    """Lemons, the least likely first, and devices that were isolated in more than one place. All of them MONITOR."""
    return (*_nodes(history, limits), *_devices(history))


def _nodes(history: NodeHistory, limits: HistoryLimits) -> tuple[Finding, ...]:
    hours = sum(use.hours for use in history.uses)
    failures = sum(len(use.failures) for use in history.uses)
    if not hours or not failures:
        return ()
    found: list[tuple[float, Finding]] = []
    for use in history.uses:
        expected = failures * use.hours / hours
        chance = poisson_tail(len(use.failures), expected)
        if len(use.failures) >= limits.history_failures and chance < limits.history_chance:
            found.append((chance, _lemon(use, expected, chance, len(history.uses))))
    return tuple(finding for _, finding in sorted(found, key=lambda x: (x[0], x[1].node)))


def _lemon(use: NodeUse, expected: float, chance: float, nodes: int) -> Finding:
    runs = len({run for run, _ in use.failures})
    where = f"{several(len(use.failures), 'attempt')} of {several(runs, 'run')}"
    evidence = (
        f"to blame in {where} within {use.hours:.3g} h on it; "
        f"{expected:.2g} expected at the rate of all {nodes} nodes (chance {chance:.1g})"
    )
    return Finding(CHECK, Verdict.MONITOR, use.node, evidence, Remedy.WATCH)


def poisson_tail(count: int, mean: float) -> float:
    """The chance of `count` or more where `mean` are expected."""
    if count <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    # summed from the smaller side's terms, so that a tiny tail is not lost beside 1
    if count <= mean:
        return max(0.0, 1.0 - math.fsum(_term(k, mean) for k in range(count)))
    total, k = 0.0, count
    while (term := _term(k, mean)) > total * 1e-12:
        total += term
        k += 1
    return min(1.0, total)


def _term(k: int, mean: float) -> float:
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))


def _devices(history: NodeHistory) -> tuple[Finding, ...]:
    """By serial number: a device that was moved takes its fault along, and its old node is good again."""
    places: dict[str, dict[tuple[str, str], str]] = {}
    for isolation in history.isolations:
        if isolation.serial:
            places.setdefault(isolation.serial, {})[isolation.node, isolation.device] = isolation.what
    found = []
    for serial, where in sorted(places.items()):
        if len(where) < 2:
            continue
        told = ", ".join(f"{node} {device} ({check})".replace("  ", " ") for (node, device), check in where.items())
        node, device = list(where)[-1]
        evidence = f"the device with serial {serial} was isolated in {len(where)} places: {told}"
        found.append(Finding(CHECK, Verdict.MONITOR, node, evidence, Remedy.REPAIR, device, serial))
    return tuple(found)
