"""Verdicts on GPU readings: composed recordings (not from hardware), with single values changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.codec import build
from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.check import FINDINGS, judge_nvml
from transom_cli.health.gpu.presence import overdue_nvml
from transom_cli.health.gpu.reading import (
    Ecc,
    Fabric,
    Gpu,
    GpuLimits,
    Heat,
    Link,
    NvmlReading,
    Pcie,
    Power,
    Process,
    Rows,
    Sram,
    gpu_versions,
)

DATA = Path(__file__).parents[1] / "data" / "gpu"
M, S, F = Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL
LIMITS = GpuLimits()


def recorded(name: str) -> tuple[NvmlReading, About]:
    said = json.loads((DATA / f"composed-{name}.json").read_text())
    return build(NvmlReading, said["readings"]["n1"]["gpu"]["reading"]), build(About, said["about"])


HEALTHY, EIGHT = recorded("h100x8-healthy")


def odd(findings: tuple[Finding, ...]) -> list[tuple[str, str, Verdict, Remedy]]:
    return [(f.check, f.device, f.verdict, f.remedy) for f in findings if f.verdict is not Verdict.PASS]


def judged(reading: NvmlReading, about: About = EIGHT) -> list[tuple[str, str, Verdict, Remedy]]:
    return odd(judge_nvml("n1", reading, about, LIMITS))


def with_gpu(index: int, **changes: Any) -> NvmlReading:
    gpus = tuple(replace(gpu, **changes) if gpu.index == index else gpu for gpu in HEALTHY.gpus)
    return replace(HEALTHY, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100x8-healthy", []),
        ("h100x8-ecc", [("gpu_ecc", "GPU-h100-0002", S, Remedy.RESET_GPU)]),
        (
            "h100x8-row-remap-failed",
            [
                ("gpu_rows", "GPU-h100-0005", F, Remedy.REPAIR),
                ("gpu_rows", "GPU-h100-0006", S, Remedy.RESET_GPU),
            ],
        ),
        ("h100x8-gpu-lost", [("gpu_lost", "GPU 7", F, Remedy.REBOOT)]),
        (
            "h100x8-throttled",
            [("gpu_clocks", "GPU-h100-0001", S, Remedy.REPAIR), ("gpu_heat", "GPU-h100-0001", M, Remedy.WATCH)],
        ),
        ("h100x8-nvlink-down", [("gpu_nvlink", "GPU-h100-0003", F, Remedy.RESET_GPU)]),
        (
            "h100x8-recovery",
            [
                ("gpu_recovery", "GPU-h100-0000", F, Remedy.RESET_GPU),
                ("gpu_recovery", "GPU-h100-0004", F, Remedy.REBOOT),
            ],
        ),
        (
            "v100x4-retired-pages",
            [
                ("gpu_pages", "GPU-v100-0002", F, Remedy.REPAIR),
                ("gpu_pages", "GPU-v100-0001", S, Remedy.REBOOT),
                ("gpu_pages", "GPU-v100-0003", M, Remedy.WATCH),
            ],
        ),
        ("l40sx4-idle", []),
        ("l40sx4-narrow", [("gpu_pcie", "GPU-l40s-0002", F, Remedy.REPAIR)]),
        ("gb200x4-degraded-fabric", [("gpu_fabric", "GPU-gb200-0001", S, Remedy.AVOID)]),
    ],
)
def test_composed_recordings(name: str, expected: list[tuple[str, str, Verdict, Remedy]]) -> None:
    reading, about = recorded(name)
    findings = judge_nvml("n1", reading, about, LIMITS)
    assert odd(findings) == expected
    assert {f.check for f in findings} == set(FINDINGS), "each check has its say"
    assert all(f.evidence and "\n" not in f.evidence for f in findings)


def test_a_healthy_node_passes_with_its_numbers() -> None:
    said = {f.check: f.evidence for f in judge_nvml("n1", HEALTHY, EIGHT, LIMITS)}
    assert len(said) == len(FINDINGS)
    assert said["gpu_count"] == "NVML sees 8 GPUs, 8 were requested"
    assert said["gpu_pcie"] == "8 GPUs: PCIe width 16, generation 5 of 5"
    assert said["gpu_nvlink"] == "8 GPUs: 18 NVLinks each, all up"
    assert said["gpu_heat"] == "8 GPUs: 31 degrees, slowdown from 87"
    assert said["gpu_pages"].startswith("not applicable")


@pytest.mark.parametrize("file", sorted(DATA.glob("composed-*.json")), ids=lambda path: path.stem)
def test_every_recording_is_tested(file: Path) -> None:
    marks = test_composed_recordings.pytestmark  # type: ignore[attr-defined]
    assert file.stem.removeprefix("composed-") in [case[0] for case in marks[0].args[1]]
    assert "not recorded on hardware" in file.read_text()


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "remedy", "says"),
    [
        ({"trouble": "GPU is lost", "trouble_code": r.GPU_IS_LOST}, "gpu_lost", F, Remedy.REBOOT, "GPU is lost"),
        (
            {"trouble": "GPU requires restart", "trouble_code": r.RESET_REQUIRED},
            "gpu_lost",
            F,
            Remedy.RESET_GPU,
            "restart",
        ),
        ({"trouble": "Unknown Error", "trouble_code": 999}, "gpu_lost", S, Remedy.REBOOT, "cannot open it"),
        ({"unread": ("nvmlDeviceGetEccMode: Timeout",)}, "gpu_lost", M, Remedy.WATCH, "Timeout"),
        ({"recovery": 3}, "gpu_recovery", S, Remedy.RESET_GPU, "3 (drain peer-to-peer"),
        ({"recovery": 4}, "gpu_recovery", F, Remedy.RESET_GPU, "4 (drain and reset)"),
        ({"recovery": 5}, "gpu_recovery", S, Remedy.AVOID, "IMEX"),
        ({"recovery": 99}, "gpu_recovery", S, Remedy.RESET_GPU, "99 (unknown)"),
        ({"ecc": Ecc(0, 3, 0, 0)}, "gpu_ecc", M, Remedy.WATCH, "0 uncorrected ECC errors since its last reset, 3 ever"),
        ({"ecc": Ecc(0, 0, 20_000_001, 0)}, "gpu_ecc_corrected", M, Remedy.WATCH, "20000001 corrected"),
        ({"sram": Sram(0, 9, 0, True)}, "gpu_sram", F, Remedy.REPAIR, "NVIDIA's threshold"),
        ({"sram": Sram(1, 1, 0, False)}, "gpu_sram", S, Remedy.RESET_GPU, "1 uncorrected errors since"),
        ({"sram": Sram(0, 1, 0, False)}, "gpu_sram", M, Remedy.WATCH, "1 ever"),
        ({"sram": Sram(0, 0, 10_001, False)}, "gpu_sram", M, Remedy.WATCH, "10001 corrected"),
        ({"rows": Rows(3, 513, False, False)}, "gpu_rows", S, Remedy.REPAIR, "limit 512"),
        ({"fabric": Fabric(2, 0, 0xAA)}, "gpu_fabric", S, Remedy.AVOID, "in progress"),
        ({"fabric": Fabric(3, 999, 0xAA)}, "gpu_fabric", S, Remedy.RESET_GPU, "NVML error 999"),
        ({"fabric": Fabric(3, 0, 0x9A)}, "gpu_fabric", S, Remedy.AVOID, "route unhealthy"),
        ({"fabric": Fabric(3, 0, 0x4AA)}, "gpu_fabric", S, Remedy.AVOID, "incorrect configuration"),
        ({"pcie": Pcie(5, 5, 8, 16, 0)}, "gpu_pcie", F, Remedy.REPAIR, "width 8 of 16"),
        ({"pcie": Pcie(3, 5, 16, 16, 0), "reasons": 0, "busy": 90}, "gpu_pcie", S, Remedy.REBOOT, "while 90% busy"),
        ({"pcie": Pcie(3, 5, 16, 16, 0), "reasons": 0, "busy": 3}, "gpu_pcie", M, Remedy.WATCH, "generation 3 of 5"),
        ({"reasons": 0x80}, "gpu_clocks", S, Remedy.REPAIR, "power brake"),
        ({"reasons": 0x20}, "gpu_clocks", M, Remedy.WATCH, "software thermal"),
        ({"heat": Heat(87, 87, 92)}, "gpu_heat", S, Remedy.REPAIR, "87 degrees; it slows down at 87"),
        ({"heat": Heat(83, 87, 92)}, "gpu_heat", M, Remedy.WATCH, "83 degrees"),
        ({"heat": Heat(83, margin=0)}, "gpu_heat", M, Remedy.WATCH, "83 degrees, 0 below its slowdown"),
        ({"power": Power(70.0, 350.0, 700.0)}, "gpu_power", M, Remedy.SETUP, "350 W; others in the node have 700 W"),
        ({"memory_used": 12 * 2**30}, "gpu_leftover", S, Remedy.AVOID, "12288 MiB in use before the launch"),
        ({"processes": (Process(4711, 2**20),)}, "gpu_leftover", M, Remedy.WATCH, "pid 4711"),
        ({"persistent": False}, "gpu_persistence", M, Remedy.SETUP, "persistence mode is off"),
        ({"ecc_on": False}, "gpu_mode", M, Remedy.SETUP, "ECC is off, but on for other"),
        ({"ecc_on_next": False}, "gpu_mode", M, Remedy.RESET_GPU, "waits for a reset"),
        ({"mig": True, "mig_next": True}, "gpu_mode", M, Remedy.SETUP, "MIG is on, but off for other"),
    ],
)
def test_one_gpu_of_eight(changes: dict[str, Any], check: str, verdict: Verdict, remedy: Remedy, says: str) -> None:
    found = [f for f in judge_nvml("n1", with_gpu(4, **changes), EIGHT, LIMITS) if f.verdict is not Verdict.PASS]
    assert [(f.check, f.verdict, f.remedy, f.device) for f in found] == [(check, verdict, remedy, "GPU-h100-0004")]
    assert found[0].evidence.startswith("GPU 4 (00000000:4F:00.0): ") and says in found[0].evidence
    assert found[0].serial == "1652323000004"


def test_what_all_gpus_show_alike_proves_nothing() -> None:
    links = tuple(Link(n, n != 3) for n in range(18))
    everywhere = replace(HEALTHY, gpus=tuple(replace(g, links=links) for g in HEALTHY.gpus))
    assert {(c, v) for c, _, v, _ in judged(everywhere)} == {("gpu_nvlink", S)}
    unbridged = replace(
        HEALTHY,
        gpus=tuple(replace(g, links=tuple(Link(n, False) for n in range(12)), switched=None) for g in HEALTHY.gpus),
    )
    assert {(c, v, m) for c, _, v, m in judged(unbridged)} == {("gpu_nvlink", M, Remedy.SETUP)}
    narrow = replace(HEALTHY, gpus=tuple(replace(g, pcie=Pcie(5, 5, 8, 16, 0)) for g in HEALTHY.gpus))
    assert {(c, v, m) for c, _, v, m in judged(narrow)} == {("gpu_pcie", M, Remedy.SETUP)}
    alone = replace(HEALTHY, gpus=(replace(HEALTHY.gpus[0], pcie=Pcie(5, 5, 8, 16, 0)),))
    assert [(c, v) for c, _, v, _ in judged(alone, About(gpus=1))] == [("gpu_pcie", S)]


def test_cards_without_a_bridge_are_no_fault_beside_cards_with_one() -> None:
    up, none = tuple(Link(n, True) for n in range(12)), tuple(Link(n, False) for n in range(12))
    bridged = tuple(
        replace(g, links=up if g.index < 2 else none, switched=False if g.index < 2 else None) for g in HEALTHY.gpus
    )
    assert {(c, v) for c, _, v, _ in judged(replace(HEALTHY, gpus=bridged))} == {("gpu_nvlink", M)}


def test_number_of_gpus_matches_the_request() -> None:
    seven = replace(HEALTHY, gpus=HEALTHY.gpus[:7])
    assert judged(seven) == [("gpu_count", "", F, Remedy.REBOOT)]
    assert judged(seven, About(gpus=7)) == judged(seven, About()) == []
    barred = replace(seven, barred=1)
    assert judged(barred) == [("gpu_count", "", Verdict.UNKNOWN, Remedy.NONE)], "this process may not see them all"
    sliced = replace(HEALTHY, gpus=tuple(replace(g, mig=True, mig_next=True) for g in HEALTHY.gpus[:1]))
    assert judged(sliced, About(gpus=7)) == [], "seven slices of one GPU"


def test_one_nodes_share_of_a_job_may_be_smaller() -> None:
    four = replace(HEALTHY, gpus=HEALTHY.gpus[:4])
    assert judged(four) == [("gpu_count", "", F, Remedy.REBOOT)]
    assert judged(replace(four, granted=4)) == [], "eight on one node and four on another"
    assert judged(replace(four, granted=8)) == judged(four)
    assert judged(replace(HEALTHY, granted=4), About(gpus=4)) == []


def test_gpus_of_another_make_are_no_nodes_fault() -> None:
    other = NvmlReading(absent="NVML Shared Library Not Found", absent_code=r.LIBRARY_NOT_FOUND, foreign=True)
    assert judged(other) == [("gpu_count", "", Verdict.UNKNOWN, Remedy.NONE)]


def test_on_a_shared_node_another_job_may_be_using_its_gpus() -> None:
    busy = with_gpu(0, memory_used=70 * 2**30, processes=(Process(1, 70 * 2**30),), reasons=0x8, heat=Heat(88, 87, 92))
    assert {verdict for _, _, verdict, _ in judged(busy, About(gpus=4))} == {M}
    assert {verdict for _, _, verdict, _ in judged(busy)} == {S}


def test_links_of_a_mig_gpu_may_be_off() -> None:
    off = tuple(replace(link, up=False) for link in HEALTHY.gpus[0].links)
    sliced = with_gpu(0, links=off, mig=True, mig_next=True, fabric=Fabric(1, 0, 0))
    assert {check for check, *_ in judged(sliced)} == {"gpu_mode"}
    assert ("gpu_nvlink", "GPU-h100-0000", F, Remedy.RESET_GPU) in judged(with_gpu(0, links=off))


@pytest.mark.parametrize(
    ("code", "queried", "verdict", "applies", "remedy"),
    [
        (r.LIBRARY_NOT_FOUND, 0, Verdict.PASS, False, Remedy.NONE),
        (r.DRIVER_NOT_LOADED, 0, Verdict.PASS, False, Remedy.NONE),
        (r.LIB_RM_VERSION_MISMATCH, 0, M, True, Remedy.SETUP),
        (r.LIBRARY_NOT_FOUND, 8, S, True, Remedy.AVOID),
        (r.DRIVER_NOT_LOADED, 8, S, True, Remedy.AVOID),
        (r.LIB_RM_VERSION_MISMATCH, 8, S, True, Remedy.REBOOT),
        (r.NO_BINDING, 8, Verdict.UNKNOWN, True, Remedy.SETUP),
    ],
)
def test_a_node_without_nvml(code: int, queried: int, verdict: Verdict, applies: bool, remedy: Remedy) -> None:
    found = judge_nvml("n1", NvmlReading(absent="NVML's words", absent_code=code), About(gpus=queried), LIMITS)
    assert [f.check for f in found] == list(FINDINGS)
    assert (found[0].verdict, found[0].applies, found[0].remedy) == (verdict, applies, remedy)
    assert "NVML's words" in found[0].evidence
    assert not any(f.applies for f in found[1:]) and gpu_versions(NvmlReading(absent="gone")) == ()


def test_during_training_memory_in_use_and_short_slowdowns_are_normal() -> None:
    beside = About(gpus=8, tier=Tier.WATCH)
    busy = with_gpu(0, memory_used=70 * 2**30, processes=(Process(1, 70 * 2**30),), reasons=0x8, heat=Heat(88, 87, 92))
    assert judged(busy, beside) == [
        ("gpu_clocks", "GPU-h100-0000", M, Remedy.REPAIR),
        ("gpu_heat", "GPU-h100-0000", M, Remedy.WATCH),
    ]


def test_thresholds_are_settings() -> None:
    used = with_gpu(0, memory_used=300 * 2**20)
    assert judged(used) == []
    strict = GpuLimits(gpu_leftover=15 * 2**20, gpu_heat_margin=60)
    found = odd(judge_nvml("n1", used, EIGHT, strict))
    assert ("gpu_leftover", "GPU-h100-0000", S, Remedy.AVOID) in found
    assert sum(check == "gpu_heat" for check, *_ in found) == 8


def test_what_must_be_the_same_on_all_nodes() -> None:
    assert gpu_versions(HEALTHY) == (
        ("driver", "570.124.06"),
        ("cuda", "12.8"),
        ("gpus", "8 x NVIDIA H100 80GB HBM3"),
        ("vbios", "96.00.99.00.01"),
    )
    assert dict(gpu_versions(with_gpu(3, name="NVIDIA H200")))["gpus"] == "7 x NVIDIA H100 80GB HBM3, 1 x NVIDIA H200"


def test_an_nvml_that_does_not_come_back() -> None:
    assert (overdue_nvml("n1", 25.0, EIGHT).verdict, overdue_nvml("n1", 25.0, About()).verdict) == (S, M)
    assert "not answer in 25 s" in overdue_nvml("n1", 25.0, EIGHT).evidence


counts = st.none() | st.integers(0, 2**63)
gpus = st.builds(
    Gpu,
    index=st.integers(0, 15),
    uuid=st.sampled_from(("", "GPU-a", "GPU-b")),
    trouble_code=st.sampled_from((0, 0, 0, 15, 16, 999)),
    recovery=counts,
    ecc=st.builds(Ecc, counts, counts, counts, counts),
    links=st.lists(st.builds(Link, st.integers(0, 35), st.booleans()), max_size=4).map(tuple),
    switched=st.none() | st.booleans(),
    pcie=st.builds(Pcie, counts, counts, counts, counts, counts),
    reasons=counts,
    busy=counts,
    heat=st.builds(Heat, counts, counts, counts),
    power=st.builds(Power, st.none() | st.floats(0, 1e4), st.none() | st.floats(0, 1e4), st.none() | st.floats(0, 1e4)),
    memory_used=counts,
    ecc_on=st.none() | st.booleans(),
    mig=st.none() | st.booleans(),
)


@given(st.lists(gpus, max_size=4).map(tuple), st.sampled_from(Tier), st.integers(0, 4))
def test_any_reading_is_judged(found: tuple[Gpu, ...], tier: Tier, queried: int) -> None:
    """Whatever of it the driver does not tell: every check answers, and those without a value do not fail."""
    findings = judge_nvml("n1", NvmlReading(gpus=found), About(tier=tier, gpus=queried), LIMITS)
    assert {f.check for f in findings} == set(FINDINGS)
    if not any(gpu.recovery for gpu in found):
        assert all(f.verdict is Verdict.PASS for f in findings if f.check == "gpu_recovery")
