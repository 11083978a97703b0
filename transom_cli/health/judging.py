"""From the readings of a job's nodes to findings: each node by itself, then all of them side by side.

Readings come as plain values, so that recorded ones (`recording`) are judged by the very same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import BadRecord, build
from transom_cli.health.about import About
from transom_cli.health.checks import NodeCheck, limits_of
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.reading import NvmlReading, gpu_versions
from transom_cli.health.node.alike import judge_alike
from transom_cli.health.node.clock import ClockLimits, judge_clocks
from transom_cli.health.node.facts import FactsReading
from transom_cli.health.node.shared import shared_trouble

ANSWER = "answer"
SILENT = "silent"
Said = dict[str, Any]  # one answer to a look: "reading", or "error", or "waited"; or "silent", for want of any
Readings = dict[str, dict[str, Said]]  # by node and check


@dataclass(frozen=True)
class Clock:
    """A node's wall clock less the asker's, in seconds, and how far that may be off."""

    offset: float
    error: float


def judge(
    nodes: Sequence[str],
    checks: Sequence[NodeCheck],
    readings: Readings,
    clocks: Mapping[str, Clock],
    about: About,
    limits: Sequence[tuple[str, float]],
) -> tuple[Finding, ...]:
    """What was read on each node, and what their readings tell when they are compared."""
    found = list(_silent(nodes, readings, clocks))
    for node in nodes:
        for check in checks:
            if not fell_silent(readings.get(node, {})) and check.name in readings.get(node, {}):
                found += judge_reading(node, check, readings[node][check.name], about, dict(limits))
    by_node: dict[str, list[Finding]] = {node: [] for node in nodes}
    for f in found:
        by_node[f.node].append(f)
    found = [f for of_node in shared_trouble(by_node).values() for f in of_node]
    found += judge_clocks({n: (c.offset, c.error) for n, c in clocks.items()}, limits_of(ClockLimits, dict(limits)))
    found += judge_alike(_facts(readings)) if len(nodes) > 1 else ()
    return tuple(found)


def _facts(readings: Readings) -> dict[str, dict[str, str]]:
    """What each node says of itself, as far as it does."""
    said: dict[str, dict[str, str]] = {}
    for node, of_node in readings.items():
        try:
            told = build(FactsReading, of_node["facts"]["reading"])
        except (BadRecord, KeyError, TypeError):
            continue
        said[node] = dict(told.facts) | _gpus(of_node)
    return said


def _gpus(of_node: dict[str, Said]) -> dict[str, str]:
    try:
        return dict(gpu_versions(build(NvmlReading, of_node["gpu"]["reading"])))
    except (BadRecord, KeyError, TypeError):
        return {}


def judge_reading(
    node: str, check: NodeCheck, said: Said, about: About, limits: Mapping[str, float]
) -> tuple[Finding, ...]:
    """One answer. An error is ours or the tool's, and says nothing of the node; what was waited for in vain may."""
    if "waited" in said:
        return (check.overdue(node, float(said["waited"]), about),)
    if "error" in said:
        return (Finding(check.name, Verdict.UNKNOWN, node, f"the check did not work: {said['error']}"),)
    try:
        reading: Any = build(check.reading, said["reading"])
        return check.judge(node, reading, about, limits_of(check.limits, limits))
    except (BadRecord, KeyError) as error:
        return (Finding(check.name, Verdict.UNKNOWN, node, f"its reading makes no sense: {error}"),)
    except Exception as error:  # a reading that nobody thought of must not cost the other checks
        return (Finding(check.name, Verdict.UNKNOWN, node, f"its reading cannot be judged: {error!r}"),)


def fell_silent(of_node: Mapping[str, Said]) -> bool:
    """Its examiner came up, and then answered to no question at all."""
    return bool(of_node) and all(SILENT in said for said in of_node.values())


def _silent(nodes: Sequence[str], readings: Readings, clocks: Mapping[str, Clock]) -> list[Finding]:
    """Nodes of which nothing was heard, or nothing any more. Where that holds for all of them it is whoever starts the
    step."""
    never = [n for n in nodes if n not in readings and n not in clocks]
    fell = [n for n in nodes if fell_silent(readings.get(n, {}))]
    others = f"while {len(nodes) - len(never) - len(fell)} other nodes answered"
    if len(never) + len(fell) == len(nodes):
        verdict, remedy, others = Verdict.UNKNOWN, Remedy.NONE, "nor of any other node"
    else:
        verdict, remedy = Verdict.SUSPECT, Remedy.AVOID
    came = "its examiner came up and then ended, or fell silent: none of its checks was answered"
    return [
        *(Finding(ANSWER, verdict, n, f"no examiner came up on it, {others}", remedy) for n in never),
        *(Finding(ANSWER, verdict, n, f"{came}, {others}", remedy) for n in fell),
    ]
