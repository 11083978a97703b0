"""Raw readings as a file, and their judgement anywhere else. Text in, text out.

    {"schema": 1, "transom": "...", "about": {...}, "clocks": {node: [offset, error]}, "readings": {node: {check: ...}},
     "probe": {...}}

Judging a recording is judging its readings by the same code as live ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.errors import UsageError
from transom_cli.health.about import About, Tier
from transom_cli.health.checks import limits_of, unwanted
from transom_cli.health.judging import Clock, Readings, judge
from transom_cli.health.probe.judge import judge_probe
from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.reading import ProbeReading
from transom_cli.health.registry import of_tier
from transom_cli.health.report import Report

SCHEMA = 1
_SERIALS = ("serial", "uuid", "guid", "node_guid", "sys_image_guid")
_SHORT = 12  # hexadecimal digits: enough to tell a cluster's devices apart


def record(report: Report, about: About, version: str, *, hash_serials: bool = False) -> str:
    readings: Any = hashed(report.readings) if hash_serials else report.readings
    clocks = {node: [clock.offset, clock.error] for node, clock in report.clocks.items()}
    whole = {"schema": SCHEMA, "transom": version, "about": plain(about), "clocks": clocks, "readings": readings}
    whole["probe"] = plain(report.probe)
    return json.dumps(whole, indent=1) + "\n"


def replay(text: str, limits: Mapping[str, float], off: frozenset[str], source: str) -> Report:
    """UsageError for what is no recording."""
    try:
        said = json.loads(text)
        about = build(About, said["about"])
        clocks = {str(n): Clock(float(c[0]), float(c[1])) for n, c in said["clocks"].items()}
        readings: Readings = {str(n): dict(r) for n, r in said["readings"].items()}
        probe = build(ProbeReading, said["probe"]) if said.get("probe") else None
        if said["schema"] != SCHEMA or not readings:
            raise ValueError(f"schema {said['schema']}, {len(readings)} nodes")
    except (ValueError, KeyError, TypeError, AttributeError, BadRecord) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"`{source}` is no recording of a check", why, "transom check --record FILE") from error
    nodes = tuple(readings)
    found = judge(nodes, of_tier(Tier.DEEP), readings, clocks, about, tuple(limits.items()))
    if probe is not None:
        found += judge_probe(probe, about, limits_of(ProbeLimits, limits))
    findings = tuple(f for f in found if not unwanted(f.check, off))
    return Report(nodes, findings, readings, clocks, {}, (f"judged from {source}",), probe=probe)


def hashed(value: Any, key: str = "") -> Any:
    """Serial numbers as digests of themselves: the same device stays the same, and nobody can order parts with it."""
    if isinstance(value, dict):
        return {k: hashed(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [hashed(v, key) for v in value]
    if key in _SERIALS and isinstance(value, str) and value:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()[:_SHORT]
    return value
