"""NVIDIA's own diagnostic, `dcgmi diag`: takes minutes on idle GPUs, for suspect nodes. The judge is pure.

Its JSON has two layouts: DCGM 2 and 3 have "DCGM GPU Diagnostic" with results by "gpu_ids", DCGM 4 has "DCGM
Diagnostic" with results by entity and a severity per warning. Not exercised on hardware: composed from NVIDIA's schema
and sources (dcgm_diag_schema.json, JsonResult tests).
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.core.log_lines import clean
from transom_cli.health.check import About, Check, NoLimits, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable, rank
from transom_cli.health.system import tracked
from transom_cli.plural import several

DCGM = "gpu_dcgm"
LEVEL = "TRANSOM_DCGM_LEVEL"
SECONDS = 900.0  # deadline of a reading; level 2 takes 2.5 to 10 minutes
_TIMEOUT = SECONDS - 30.0  # end the diagnostic before the reader itself is killed


@dataclass(frozen=True)
class DcgmTest:
    """One test on one GPU. severity: dcgmErrorSeverity_t of its worst warning; 0 if not reported (before DCGM 4).

    device: as DCGM numbers it. status: "pass", "fail", "warn" or "skip". words: DCGM's warnings.
    """

    name: str
    device: str
    status: str
    severity: int = 0
    words: str = ""
    serial: str = ""


@dataclass(frozen=True)
class DcgmReading:
    """absent: why it was not run. error: why it ran without a result."""

    absent: str = ""
    error: str = ""
    level: int = 0
    version: str = ""
    tests: tuple[DcgmTest, ...] = ()


def read_dcgm(about: About, timeout: float = _TIMEOUT) -> DcgmReading:
    """Run level 2, or 1 to 4 by $TRANSOM_DCGM_LEVEL. Not on a shared node, where it would load other jobs' GPUs."""
    program = shutil.which("dcgmi")
    if program is None:
        return DcgmReading(absent="dcgmi is not installed")
    present = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if about.gpus and present > about.gpus:
        return DcgmReading(absent=f"the job has {about.gpus} of the node's {present} GPUs")
    value = os.environ.get(LEVEL, "")
    level = int(value) if value in ("1", "2", "3", "4") else 2
    try:
        output = _run([program, "diag", "-r", str(level), "-j"], timeout)
    except OSError as error:
        return DcgmReading(error=f"dcgmi: {error.strerror or error}", level=level)
    except subprocess.TimeoutExpired:
        return DcgmReading(error=f"it did not finish in {timeout:.0f} s", level=level)
    return parse_dcgm(output, level)


def _run(argv: list[str], timeout: float) -> str:
    """Return standard output for any exit code: a failed test has its own."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            with tracked(child.pid):
                return child.communicate(timeout=timeout)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise


def parse_dcgm(output: str, level: int = 0) -> DcgmReading:
    """Parse dcgmi's output; text may come before and after the JSON document."""
    begin, end = output.find("{"), output.rfind("}")
    try:
        document = json.loads(output[begin : end + 1])
        found = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
        tests = tuple(_tests(found.get("test_categories") or (), _serials(document)))
        version = str((document.get("metadata") or {}).get("version") or found.get("version") or "")
        failed = found.get("runtime_error") or found.get("error")
    except (ValueError, KeyError, TypeError, AttributeError):
        return DcgmReading(error=_clean(output) or "dcgmi printed nothing", level=level)
    if failed or not tests:
        return DcgmReading(error=_clean(str(failed or "it ran no test")), level=level, version=_clean(version))
    return DcgmReading(level=level, version=_clean(version), tests=tests)


def _tests(categories: Any, serials: dict[str, str]) -> Iterator[DcgmTest]:
    for category in categories:
        for test in filter(None, (category or {}).get("tests") or ()):  # DCGM 3 has nulls between tests
            for result in filter(None, test.get("results") or ()):
                severity, words = _warnings(result.get("warnings"))
                status = _status(str(result.get("status", "")))
                for device in _devices(result):
                    name, serial = _clean(str(test.get("name", "?"))), serials.get(device, "")
                    yield DcgmTest(name, device, status, severity, words, serial)


def _devices(result: dict[str, Any]) -> list[str]:
    if "entity_group" in result:
        return [f"{result['entity_group']} {result.get('entity_id', '?')}"]
    return [f"GPU {number.strip()}" for number in str(result.get("gpu_ids", "?")).split(",")]


def _warnings(value: Any) -> tuple[int, str]:
    """Parse a list of objects (DCGM 4, and late 3), a list of texts, or one text."""
    value = value if isinstance(value, list) else [value] if value else []
    severity, words = 0, []
    for warning in value:
        if isinstance(warning, dict):
            severity = max(severity, int(warning.get("error_severity") or 0), key=_severity_rank)
            words.append(str(warning.get("warning", "")))
        else:
            words.append(str(warning))
    return severity, _clean("; ".join(words))


def _status(value: str) -> str:
    return value.strip().lower().removesuffix("ed").replace("skipp", "skip")


def _serials(document: dict[str, Any]) -> dict[str, str]:
    """Return serial numbers by entity ("GPU 3"), as DCGM 4 reports them."""
    return {
        f"{group.get('entity_group')} {entity.get('entity_id')}": str(entity["serial_num"])
        for group in document.get("entity_groups") or ()
        for entity in group.get("entities") or ()
        if entity.get("serial_num") and "NOT_SUPPORTED" not in str(entity["serial_num"])
    }


def _clean(text: str) -> str:
    return clean(" ".join(text.split()))


def judge_dcgm(node: str, reading: DcgmReading, about: About, limits: NoLimits) -> tuple[Finding, ...]:
    """Return one finding per GPU and test that failed or warned, or one PASS."""
    if reading.absent:
        return (not_applicable(DCGM, node, reading.absent),)
    command = f"dcgmi diag -r {reading.level}" + (f" (DCGM {reading.version})" if reading.version else "")
    if reading.error:
        return (Finding(DCGM, Verdict.UNKNOWN, node, f"{command}: {reading.error}"),)
    found = tuple(_judge(node, command, test) for test in reading.tests if test.status in ("fail", "warn"))
    passed = sum(test.status == "pass" for test in reading.tests)
    if not found and not passed:
        return (Finding(DCGM, Verdict.UNKNOWN, node, f"{command}: all tests were skipped"),)
    devices = several(len({test.device for test in reading.tests}), "GPU")
    passes = f"{command}: {several(passed, 'test')} passed on {devices}"
    return found or (Finding(DCGM, Verdict.PASS, node, passes),)


# dcgmErrorSeverity_t, DCGM 4's severity of a warning. 3: an error that DCGM does not know; 4: to be triaged.
_SEVERITIES = {
    1: (Verdict.MONITOR, Remedy.WATCH),
    2: (Verdict.FAIL, Remedy.REPAIR),
    3: (Verdict.SUSPECT, Remedy.AVOID),
    4: (Verdict.SUSPECT, Remedy.AVOID),
    5: (Verdict.MONITOR, Remedy.SETUP),
    6: (Verdict.FAIL, Remedy.RESET_GPU),
}


def _severity_rank(severity: int) -> int:
    return rank(_SEVERITIES.get(severity, (Verdict.PASS, Remedy.NONE))[0])


def _judge(node: str, command: str, test: DcgmTest) -> Finding:
    verdict, remedy = _SEVERITIES.get(test.severity, (Verdict.SUSPECT, Remedy.AVOID))
    if test.status == "warn":
        verdict, remedy = Verdict.MONITOR, Remedy.WATCH
    text = f"{command}: {test.name} on {test.device}: {test.status}" + (f": {test.words}" if test.words else "")
    return Finding(DCGM, verdict, node, text, remedy, test.device, test.serial)


CHECK = Check(
    name="dcgm",
    reader="transom_cli.health.gpu.dcgm:read_dcgm",
    judge=judge_dcgm,
    reading=DcgmReading,
    limits=NoLimits,
    seconds=SECONDS,
    tier=Tier.DEEP,
    findings=(DCGM,),
    overdue="dcgmi diag",
)
