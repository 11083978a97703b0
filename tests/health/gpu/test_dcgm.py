"""NVIDIA's diagnostic: both layouts of its JSON, and a `dcgmi` that is a script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.codec import build, plain
from transom_cli.health.check import About, NoLimits, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.dcgm import CHECK, LEVEL, DcgmReading, judge_dcgm, parse_dcgm, read_dcgm

DEEP = About(tier=Tier.DEEP, gpus=2)
M, S, F = Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL


def judged(reading: DcgmReading) -> list[Finding]:
    return list(judge_dcgm("n1", reading, DEEP, NoLimits()))


def version4(*results: dict[str, Any], **more: Any) -> str:
    whole = {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Integration",
                    "tests": [{"name": "pcie", "results": list(results), "test_summary": {"status": "Fail"}}],
                }
            ],
            **more,
        },
        "entity_groups": [
            {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entities": [
                    {"entity_id": 0, "device_id": "2330", "serial_num": "165232300001"},
                    {"entity_id": 1, "device_id": "2330", "serial_num": "<<<NOT_SUPPORTED>>>"},
                ],
            }
        ],
        "metadata": {"version": "4.2.3", "Driver Version Detected": "570.124.06"},
    }
    return json.dumps(whole, indent=4)


def result4(gpu: int, status: str, **warning: Any) -> dict[str, Any]:
    found = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status}
    return {**found, "warnings": [{"error_category": 8, "error_id": 29, **warning}]} if warning else found


def version3(*tests: tuple[str, dict[str, Any]]) -> str:
    listed: list[Any] = []
    for name, result in tests:
        listed += [{"name": name, "results": [result]}, None]  # as DCGM 3 prints them
    return json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": listed}], "version": "3.1.0"}}
    )


def test_dcgm_4_that_passes() -> None:
    reading = parse_dcgm(version4(result4(0, "Pass"), result4(1, "Pass")), 2)
    (found,) = judged(reading)
    assert found.verdict is Verdict.PASS
    assert found.evidence == "dcgmi diag -r 2 (DCGM 4.2.3): 2 tests passed on 2 GPUs"
    assert build(DcgmReading, json.loads(json.dumps(plain(reading)))) == reading


@pytest.mark.parametrize(
    ("severity", "verdict", "remedy"),
    [
        (1, M, Remedy.WATCH),
        (2, F, Remedy.REPAIR),
        (3, S, Remedy.AVOID),
        (4, S, Remedy.AVOID),
        (5, M, Remedy.SETUP),
        (6, F, Remedy.RESET_GPU),
        (0, S, Remedy.AVOID),
    ],
)
def test_dcgm_4_severities_decide_the_verdict(severity: int, verdict: Verdict, remedy: Remedy) -> None:
    said = version4(result4(0, "Fail", error_severity=severity, warning="PCIe is\nbad"), result4(1, "Pass"))
    (found,) = judged(parse_dcgm(said, 2))
    assert (found.verdict, found.remedy, found.device, found.serial) == (verdict, remedy, "GPU 0", "165232300001")
    assert found.evidence == "dcgmi diag -r 2 (DCGM 4.2.3): pcie on GPU 0: fail: PCIe is bad"


def test_the_worst_of_several_warnings_counts() -> None:
    both = result4(1, "Fail", error_severity=5, warning="mode")
    both["warnings"].append({"error_severity": 2, "warning": "broken"})
    (found,) = judged(parse_dcgm(version4(both), 3))
    assert (found.verdict, found.remedy, found.serial) == (F, Remedy.REPAIR, "") and "mode; broken" in found.evidence


def test_dcgm_3_output_with_leading_text_and_nulls() -> None:
    said = version3(
        ("NVML Library", {"gpu_ids": "0,1", "status": "PASS"}),
        ("Memory", {"gpu_ids": "1", "status": "FAIL", "warnings": ["Error in cuMemAlloc"]}),
        ("Diagnostic", {"gpu_ids": 0, "status": "WARN", "warnings": "slow", "info": ["x"]}),
        ("PCIe", {"gpu_ids": "0,1", "status": "SKIPPED"}),
    )
    reading = parse_dcgm("Successfully ran diagnostic for group.\n" + said + "\nbye\n", 1)
    assert [(t.device, t.name, t.status) for t in reading.tests][:3] == [
        ("GPU 0", "NVML Library", "pass"),
        ("GPU 1", "NVML Library", "pass"),
        ("GPU 1", "Memory", "fail"),
    ]
    assert [(f.device, f.verdict, f.remedy) for f in judged(reading)] == [
        ("GPU 1", S, Remedy.AVOID),
        ("GPU 0", M, Remedy.WATCH),
    ]
    assert "(DCGM 3.1.0): Memory on GPU 1: fail: Error in cuMemAlloc" in judged(reading)[0].evidence


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("", "dcgmi printed nothing"),
        ("Error: unable to establish a connection to the specified host: localhost\n", "unable to establish"),
        ("{not json}", "{not json}"),
        ('{"other": 1}', "other"),
        (version4(runtime_error="Unable to run diagnostic on unsupported GPU 0."), "unsupported GPU"),
        (version4(), "it ran no test"),
        (version4(result4(0, "Skip")), "all tests were skipped"),
        ('{"DCGM Diagnostic": {"test_categories": [{"tests": 5}]}}', "test_categories"),
    ],
)
def test_without_a_result_nothing_is_known_of_the_node(said: str, says: str) -> None:
    (found,) = judged(parse_dcgm(said, 2))
    assert found.verdict is Verdict.UNKNOWN and says in found.evidence and "\n" not in found.evidence


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(LEVEL, raising=False)
    return tmp_path / "dcgmi"


def script(path: Path, text: str) -> None:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_it_is_run_and_its_exit_code_is_no_news(dcgmi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dcgmi.parent / "said").write_text(version4(result4(0, "Fail", error_severity=2, warning="bad")))
    script(dcgmi, f'echo "$*" > {dcgmi}.asked\ncat {dcgmi.parent}/said\nexit 226\n')
    assert [f.verdict for f in judged(read_dcgm(DEEP))] == [F]
    assert Path(f"{dcgmi}.asked").read_text() == "diag -r 2 -j\n"
    for given_level, level in (("3", 3), ("9", 2), ("x", 2)):
        monkeypatch.setenv(LEVEL, given_level)
        assert read_dcgm(DEEP).level == level


def test_hanging_dcgmi_is_killed_with_its_children(dcgmi: Path) -> None:
    script(dcgmi, "sleep 300 &\nwait\n")  # the grandchild holds the pipe, too
    (found,) = judged(read_dcgm(DEEP, timeout=0.5))
    assert found.verdict is Verdict.UNKNOWN and "did not finish" in found.evidence
    assert CHECK.late("n1", 900.0, DEEP).verdict is Verdict.UNKNOWN


def test_where_it_is_not_installed_it_does_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = judged(read_dcgm(DEEP))
    assert not found.applies and found.evidence == "not applicable: dcgmi is not installed"


def test_dcgmi_that_cannot_be_started(dcgmi: Path) -> None:
    dcgmi.write_text("no program at all")
    dcgmi.chmod(0o755)
    assert "Exec format error" in read_dcgm(DEEP).error


KEYS = ["tests", "results", "warnings", "status", "name", "gpu_ids", "entity_group", "test_categories", "version"]
KEYS += ["DCGM Diagnostic", "DCGM GPU Diagnostic", "entity_groups", "metadata", "error_severity"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
)


@given(VALUES)
def test_any_json_is_taken(value: Any) -> None:
    assert judged(parse_dcgm(json.dumps({"DCGM Diagnostic": value}), 2))
    assert judged(parse_dcgm(json.dumps(value), 2))
