"""What NVIDIA's own diagnostic, `dcgmi diag`, says of a node's GPUs. Pure; `dcgm_run` runs it.

Its JSON has two layouts: DCGM 2 and 3 give "DCGM GPU Diagnostic" with results by "gpu_ids", DCGM 4 gives "DCGM
Diagnostic" with results by entity and a severity for each warning. Not exercised on hardware: composed from NVIDIA's
schema and sources (dcgm_diag_schema.json, JsonResult tests).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transom_cli.core.rootline import clean
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.plural import several

CHECK = "gpu_dcgm"


@dataclass(frozen=True)
class DcgmTest:
    """One test on one GPU. severity: of its worst warning, dcgmErrorSeverity_t; 0 where none is told (before DCGM 4).

    device: as DCGM numbers them. status: lower case: "pass", "fail", "warn", "skip".
    """

    name: str
    device: str
    status: str
    severity: int = 0
    words: str = ""
    serial: str = ""


@dataclass(frozen=True)
class DcgmReading:
    """absent: why it was not run. error: why there is no result although it was."""

    absent: str = ""
    error: str = ""
    level: int = 0
    version: str = ""
    tests: tuple[DcgmTest, ...] = ()


@dataclass(frozen=True)
class DcgmLimits:
    """There is nothing to set: DCGM has its own criteria. Its level is the reader's (`dcgm_run`)."""


def parse_dcgm(said: str, level: int = 0) -> DcgmReading:
    """Words may come before the document and after it. Pure."""
    begin, end = said.find("{"), said.rfind("}")
    try:
        document = json.loads(said[begin : end + 1])
        found = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
        tests = tuple(_tests(found.get("test_categories") or (), _serials(document)))
        version = str((document.get("metadata") or {}).get("version") or found.get("version") or "")
        failed = found.get("runtime_error") or found.get("error")
    except (ValueError, KeyError, TypeError, AttributeError):
        return DcgmReading(error=_clean(said) or "dcgmi said nothing", level=level)
    if failed or not tests:
        return DcgmReading(error=_clean(str(failed or "it ran no test")), level=level, version=_clean(version))
    return DcgmReading(level=level, version=_clean(version), tests=tests)


def judge_dcgm(node: str, reading: DcgmReading, about: About, limits: DcgmLimits) -> tuple[Finding, ...]:
    """One finding for each GPU and test that failed or warned; one PASS when none did."""
    if reading.absent:
        return (not_applicable(CHECK, node, reading.absent),)
    run = f"dcgmi diag -r {reading.level}" + (f" (DCGM {reading.version})" if reading.version else "")
    if reading.error:
        return (Finding(CHECK, Verdict.UNKNOWN, node, f"{run}: {reading.error}"),)
    bad = [test for test in reading.tests if test.status in ("fail", "warn")]
    found = tuple(_judged(node, run, test) for test in bad)
    passed = sum(test.status == "pass" for test in reading.tests)
    if not found and not passed:
        return (Finding(CHECK, Verdict.UNKNOWN, node, f"{run}: all tests were skipped"),)
    devices = len({test.device for test in reading.tests})
    return found or (
        Finding(CHECK, Verdict.PASS, node, f"{run}: {several(passed, 'test')} passed on {several(devices, 'GPU')}"),
    )


def overdue_dcgm(node: str, waited: float, about: About) -> Finding:
    return Finding(CHECK, Verdict.UNKNOWN, node, f"dcgmi diag has not ended within {waited:.0f} s")


# dcgmErrorSeverity_t: what DCGM 4 says of each warning. 3 is an error that it does not know, 4 one to be looked into.
_SEVERITIES = {
    1: (Verdict.MONITOR, Remedy.WATCH),
    2: (Verdict.FAIL, Remedy.REPAIR),
    3: (Verdict.SUSPECT, Remedy.AVOID),
    4: (Verdict.SUSPECT, Remedy.AVOID),
    5: (Verdict.MONITOR, Remedy.SETUP),
    6: (Verdict.FAIL, Remedy.RESET_GPU),
}


def _judged(node: str, run: str, test: DcgmTest) -> Finding:
    verdict, remedy = _SEVERITIES.get(test.severity, (Verdict.SUSPECT, Remedy.AVOID))
    if test.status == "warn":
        verdict, remedy = Verdict.MONITOR, Remedy.WATCH
    said = f"{run}: {test.name} on {test.device}: {test.status}" + (f": {test.words}" if test.words else "")
    return Finding(CHECK, verdict, node, said, remedy, test.device, test.serial)


def _tests(categories: Any, serials: dict[str, str]) -> Iterator[DcgmTest]:
    for category in categories:
        for test in filter(None, (category or {}).get("tests") or ()):  # DCGM 3 has nulls between tests
            for result in filter(None, test.get("results") or ()):
                severity, words = _warnings(result.get("warnings"))
                status = _status(str(result.get("status", "")))
                for device in _devices(result):
                    yield DcgmTest(
                        _clean(str(test.get("name", "?"))), device, status, severity, words, serials.get(device, "")
                    )


def _devices(result: dict[str, Any]) -> list[str]:
    if "entity_group" in result:
        return [f"{result['entity_group']} {result.get('entity_id', '?')}"]
    return [f"GPU {number.strip()}" for number in str(result.get("gpu_ids", "?")).split(",")]


def _warnings(given: Any) -> tuple[int, str]:
    """A list of objects (DCGM 4, and late 3), of words, or words alone."""
    given = given if isinstance(given, list) else [given] if given else []
    severity, words = 0, []
    for warning in given:
        if isinstance(warning, dict):
            rank = int(warning.get("error_severity") or 0)
            severity = max(severity, rank, key=_rank)
            words.append(str(warning.get("warning", "")))
        else:
            words.append(str(warning))
    return severity, _clean("; ".join(words))


def _rank(severity: int) -> int:
    verdict = _SEVERITIES.get(severity, (Verdict.PASS, Remedy.NONE))[0]
    return (Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL).index(verdict)


def _status(given: str) -> str:
    return given.strip().lower().removesuffix("ed").replace("skipp", "skip")


def _serials(document: dict[str, Any]) -> dict[str, str]:
    """Of DCGM 4: "GPU 3" to its serial number, where it has one."""
    return {
        f"{group.get('entity_group')} {entity.get('entity_id')}": str(entity["serial_num"])
        for group in document.get("entity_groups") or ()
        for entity in group.get("entities") or ()
        if entity.get("serial_num") and "NOT_SUPPORTED" not in str(entity["serial_num"])
    }


def _clean(text: str) -> str:
    return clean(" ".join(text.split()))
