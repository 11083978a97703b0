"""What a health run returns: the report, its summary for people and files, and recordings that can be judged again.

A recording is one JSON object; it is judged by the same code as live readings:

    {"schema": 1, "transom": "...", "about": {...}, "clocks": {node: [offset, error]}, "readings": {node: {check: ...}},
     "probe": {...}}
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.core.events import NodeFault
from transom_cli.errors import UsageError, printable
from transom_cli.health.check import About, Check, Tier, limits_of, unwanted
from transom_cli.health.finding import WORST_FIRST, Finding, Verdict
from transom_cli.health.judge import Clock, Readings, judge
from transom_cli.health.probe.judge import judge_probe
from transom_cli.health.probe.matrix import Cell
from transom_cli.health.probe.messages import ProbeReading
from transom_cli.health.probe.plan import ProbeLimits
from transom_cli.health.registry import of_tier
from transom_cli.plural import several

SCHEMA = 1
RECORDING_SCHEMA = 1
_SERIALS = ("serial", "uuid", "guid", "node_guid", "sys_image_guid")
_DIGITS = 12  # hexadecimal; enough to distinguish a cluster's devices


@dataclass(frozen=True)
class Report:
    """findings: of all nodes, passes included. readings: raw, for recording. seconds: by phase.

    notes: what could not be done, for people. silent: nodes that never answered. cells: delay and bandwidth from each
    node to its partners. probe: what the probe measured; None if it did not run.
    """

    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]
    readings: Readings
    clocks: dict[str, Clock]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    probe: ProbeReading | None = None


def faults(findings: Iterable[Finding]) -> tuple[NodeFault, ...]:
    """Return the findings that keep nodes from running ranks, proven ones first."""
    bad = sorted((f for f in findings if f.verdict.bad), key=lambda f: WORST_FIRST.index(f.verdict))
    return tuple(
        NodeFault(f.node, f.check, f.verdict.name, printable(f.evidence), f.remedy.value, f.device, f.serial)
        for f in bad
    )


def summary_line(report: Report) -> str:
    bad = list(dict.fromkeys(f.node for f in report.findings if f.verdict.bad))
    counts = Counter(f.verdict for f in report.findings)
    took = f" in {report.seconds['all']:.1f} s" if "all" in report.seconds else ""
    if len(report.silent) == len(report.nodes):
        return f"nothing was checked{took}: the health check did not start on {several(len(report.nodes), 'node')}"
    parts = [f"{several(len(report.nodes), 'node')} checked{took}"]
    if bad:
        first = faults(report.findings)[0]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        parts.append(f"{first.node}{more} bad ({first.check}: {first.evidence})")
    else:
        parts.append("none is bad")
    if counts[Verdict.MONITOR]:
        parts.append(f"{several(counts[Verdict.MONITOR], 'finding')} to monitor")
    if counts[Verdict.UNKNOWN]:
        parts.append(f"{several(counts[Verdict.UNKNOWN], 'check')} without a result")
    return ", ".join(parts)


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings worst first, and those that apply before those that do not."""
    return sorted(findings, key=lambda f: (WORST_FIRST.index(f.verdict), not f.applies, f.check, f.node))


def document(report: Report, most: int | None = None) -> dict[str, Any]:
    """Return the report as JSON, for `transom check --json` and the attempt's health folder.

    Args:
        most: with more nodes than this, passes are only counted: for 1,024 nodes they would take 9 MB.
    """
    found = by_weight(report.findings)
    if most is not None and len(report.nodes) > most:
        found = [f for f in found if f.verdict is not Verdict.PASS]
    return {
        "schema": SCHEMA,
        "nodes": list(report.nodes),
        "worst": worst_for_people(report.findings).value,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "passed": sum(f.verdict is Verdict.PASS for f in report.findings),
        "findings": [plain(f) for f in found],
        "links": [_link(cell) for cell in report.cells],
    }


def _link(cell: Cell) -> dict[str, Any]:
    """rate: bytes per second. delay: seconds, one way."""
    return {"from": cell.src, "to": cell.dst, "device": cell.index, "rate": cell.rate, "delay": cell.delay}


def worst_for_people(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict, with UNKNOWN above PASS: people must see that something was not checked."""
    return min((f.verdict for f in findings), key=WORST_FIRST.index, default=Verdict.UNKNOWN)


def record(report: Report, about: About, version: str, *, hash_serials: bool = False) -> str:
    readings: Any = hashed(report.readings) if hash_serials else report.readings
    clocks = {node: [clock.offset, clock.error] for node, clock in report.clocks.items()}
    whole = {"schema": RECORDING_SCHEMA, "transom": version, "about": plain(about), "clocks": clocks}
    return json.dumps({**whole, "readings": readings, "probe": plain(report.probe)}, indent=1) + "\n"


def replay(
    text: str, limits: Mapping[str, float], off: frozenset[str], source: str, checks: tuple[Check, ...] = ()
) -> Report:
    """Judge a recording. checks: these instead of all checks. Raises UsageError: the text is not a recording."""
    try:
        data = json.loads(text)
        about = build(About, data["about"])
        clocks = {str(n): Clock(float(c[0]), float(c[1])) for n, c in data["clocks"].items()}
        readings: Readings = {str(n): dict(r) for n, r in data["readings"].items()}
        probe = build(ProbeReading, data["probe"]) if data.get("probe") else None
        if data["schema"] != RECORDING_SCHEMA or not readings:
            raise ValueError(f"schema {data['schema']}, {len(readings)} nodes")
    except (ValueError, KeyError, TypeError, AttributeError, BadRecord) as error:
        why = f"{type(error).__name__}: {error}"
        hint = "Record one with `transom check --record FILE`."
        raise UsageError(f"`{source}` is not a health-check recording", why, hint) from error
    nodes = tuple(readings)
    found = judge(nodes, checks or of_tier(Tier.DEEP), readings, clocks, about, tuple(limits.items()))
    if probe is not None:
        found += judge_probe(probe, about, limits_of(ProbeLimits, limits))
    findings = tuple(f for f in found if not unwanted(f.check, off))
    return Report(nodes, findings, readings, clocks, {}, (f"judged from {source}",), probe=probe)


def hashed(value: Any, key: str = "") -> Any:
    """Replace serial numbers by digests: equal devices stay equal, and nobody can order parts with them."""
    if isinstance(value, dict):
        return {k: hashed(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [hashed(v, key) for v in value]
    if key in _SERIALS and isinstance(value, str) and value:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()[:_DIGITS]
    return value
