"""Turn the readings of a job's nodes into findings: each node by itself, then all nodes compared.

Readings are plain values, so recorded ones (`report.replay`) are judged by the same code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.core.codec import BadRecord, build
from transom_cli.health.check import About, Check, limits_of
from transom_cli.health.checks.clock import ClockLimits, judge_clocks
from transom_cli.health.checks.facts import FactsReading, judge_alike
from transom_cli.health.finding import Finding, Remedy, Verdict, rank
from transom_cli.health.gpu.reading import NvmlReading, gpu_versions

ANSWER = "answer"
SILENT = "silent"
Said = dict[str, Any]  # one check's result: "reading", "error" or "waited"; or "silent" if nothing came
Readings = dict[str, dict[str, Said]]  # by node and check

_PATHS = ("mount:", "write:", "room:")
_MAY_WAIT = ("mount:", "write:", "run_dir")
_LOCAL = ("/tmp", "/dev/shm")
_SHARED = (
    "answer", "run_dir", "shm", "memory", "ib_state", "ib_rate",
    "gpu_count", "gpu_lost", "gpu_nvlink", "gpu_fabric", "gpu_clocks", "gpu_heat", "gpu_leftover",
)  # fmt: skip


@dataclass(frozen=True)
class Clock:
    """A node's wall clock minus the asking host's, and the error of that measurement, in seconds."""

    offset: float
    error: float


def judge(
    nodes: Sequence[str],
    checks: Sequence[Check],
    readings: Readings,
    clocks: Mapping[str, Clock],
    about: About,
    limits: Sequence[tuple[str, float]],
) -> tuple[Finding, ...]:
    """Return the findings of every node, including those that come from comparing nodes."""
    found = list(_silent(nodes, readings, clocks))
    for node in nodes:
        for check in checks:
            if not fell_silent(readings.get(node, {})) and check.name in readings.get(node, {}):
                found += judge_reading(node, check, readings[node][check.name], about, dict(limits))
    by_node: dict[str, list[Finding]] = {node: [] for node in nodes}
    for f in found:
        by_node[f.node].append(f)
    found = [f for of_node in demote_shared_trouble(by_node).values() for f in of_node]
    found += judge_clocks({n: (c.offset, c.error) for n, c in clocks.items()}, limits_of(ClockLimits, dict(limits)))
    found += judge_alike(_facts(readings)) if len(nodes) > 1 else ()
    return tuple(found)


def _facts(readings: Readings) -> dict[str, dict[str, str]]:
    facts: dict[str, dict[str, str]] = {}
    for node, of_node in readings.items():
        try:
            reading = build(FactsReading, of_node["facts"]["reading"])
        except (BadRecord, KeyError, TypeError):
            continue
        facts[node] = dict(reading.facts) | _gpu_facts(of_node)
    return facts


def _gpu_facts(of_node: dict[str, Said]) -> dict[str, str]:
    try:
        return dict(gpu_versions(build(NvmlReading, of_node["gpu"]["reading"])))
    except (BadRecord, KeyError, TypeError):
        return {}


def judge_reading(
    node: str, check: Check, said: Said, about: About, limits: Mapping[str, float]
) -> tuple[Finding, ...]:
    """Judge one check's result. An error is ours or the tool's and UNKNOWN; a reader that hung may be evidence."""
    if "waited" in said:
        return (check.late(node, float(said["waited"]), about),)
    if "error" in said:
        return (Finding(check.name, Verdict.UNKNOWN, node, f"the check failed to run: {said['error']}"),)
    try:
        reading: Any = build(check.reading, said["reading"])
        return check.judge(node, reading, about, limits_of(check.limits, limits))
    except (BadRecord, KeyError) as error:
        return (Finding(check.name, Verdict.UNKNOWN, node, f"the reading is malformed: {error}"),)
    except Exception as error:  # an unforeseen reading must not cost the other checks
        return (Finding(check.name, Verdict.UNKNOWN, node, f"the reading cannot be judged: {error!r}"),)


def fell_silent(of_node: Mapping[str, Said]) -> bool:
    """Return whether the node's worker started and then answered nothing at all."""
    return bool(of_node) and all(SILENT in said for said in of_node.values())


def _silent(nodes: Sequence[str], readings: Readings, clocks: Mapping[str, Clock]) -> list[Finding]:
    """Suspect silent nodes, unless all are silent: then the step that starts the workers is at fault."""
    never = [n for n in nodes if n not in readings and n not in clocks]
    fell = [n for n in nodes if fell_silent(readings.get(n, {}))]
    others = f"while {len(nodes) - len(never) - len(fell)} other nodes answered"
    if len(never) + len(fell) == len(nodes):
        verdict, remedy, others = Verdict.UNKNOWN, Remedy.NONE, "and no other node answered"
    else:
        verdict, remedy = Verdict.SUSPECT, Remedy.AVOID
    started = "the health check started and then stopped answering"
    return [
        *(Finding(ANSWER, verdict, n, f"the health check did not start, {others}", remedy) for n in never),
        *(Finding(ANSWER, verdict, n, f"{started}, {others}", remedy) for n in fell),
    ]


def demote_shared_trouble(findings: Mapping[str, Sequence[Finding]]) -> dict[str, tuple[Finding, ...]]:
    """Turn a SUSPECT into MONITOR if its cause is shared by the nodes: a file server, a subnet manager, a setting.

    It is shared if it holds on more than half of the nodes and on at least two, or if at least as many other nodes, and
    at least two, had to wait for the same file system. Only checks of shared things count. A node where the check did
    not work counts for neither side. A FAIL is proof and stays.

    Args:
        findings: by node.
    """
    before, after = None, {node: tuple(of_node) for node, of_node in findings.items()}
    while after != before:  # what one check shows about a file system also explains the others
        before, after = after, _demote_once(after)
    return after


def _demote_once(findings: Mapping[str, tuple[Finding, ...]]) -> dict[str, tuple[Finding, ...]]:
    seen: dict[str, list[Verdict]] = {}
    slow: dict[str, set[str]] = {}
    for node, of_node in findings.items():
        worst: dict[str, Verdict] = {}
        for f in of_node:
            if f.check in _SHARED or f.check.startswith(_PATHS):
                worst[f.check] = max(f.verdict, worst.get(f.check, Verdict.UNKNOWN), key=rank)
        for name, verdict in worst.items():
            if verdict is not Verdict.UNKNOWN:
                seen.setdefault(name, []).append(verdict)
            if verdict is Verdict.MONITOR and name.startswith(("mount:", "run_dir")):
                slow.setdefault(_path(name), set()).add(node)
    share = {name: (sum(v.bad for v in verdicts), len(verdicts)) for name, verdicts in seen.items()}
    return {node: tuple(_demote(f, share, slow) for f in of_node) for node, of_node in findings.items()}


def _demote(found: Finding, share: Mapping[str, tuple[int, int]], slow: Mapping[str, set[str]]) -> Finding:
    bad, nodes = share.get(found.check, (0, 0))
    local = found.check.endswith(_LOCAL) or not found.check.startswith((*_PATHS, "run_dir"))
    others = slow.get(_path(found.check), set()) - {found.node}
    waiting = 0 if local or not found.check.startswith(_MAY_WAIT) else len(others)
    if found.verdict is not Verdict.SUSPECT:
        return found
    if waiting >= max(2, bad):
        text = f"{found.evidence} ({waiting} other nodes waited for it too, so the file system is slow, not the node)"
    elif bad < 2 or bad * 2 <= nodes:
        return found
    else:
        cause = "the cause is shared" if local else "the file system is at fault"
        text = f"{found.evidence} (on {bad} of {nodes} nodes, so {cause}, not the node)"
    return replace(found, verdict=Verdict.MONITOR, remedy=Remedy.SETUP, evidence=text)


def _path(check: str) -> str:
    return check.partition(":")[2] or check
