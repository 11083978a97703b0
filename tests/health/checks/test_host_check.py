"""The host check: memory, memory errors, load, uptime, clock; and the comparison of several nodes' clocks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import codec
from transom_cli.health.check import About
from transom_cli.health.checks.clock import Clock, ClockLimits, judge_clock, judge_clocks, read_clock
from transom_cli.health.checks.host import (
    FINDINGS,
    Controller,
    MachineLimits,
    MachineReading,
    Memory,
    judge_machine,
    judge_machine_changes,
    parse_meminfo,
    read_edac,
    read_machine,
)
from transom_cli.health.finding import Finding, Remedy, Verdict

GIB = 2**30
LIMITS = MachineLimits()
WELL = MachineReading(
    memory=Memory(60 * GIB, 64 * GIB, GIB, 0),
    edac=(Controller("mc0", 0, 0),),
    load=1.5,
    cpus=32,
    ticks=(1000, 10),
    booted=9e5,
    clock=Clock("tsc", True, 0.004),
)


def judged(reading: MachineReading, snapshots: int = 0) -> dict[str, Finding]:
    return {f.check: f for f in judge_machine("n1", reading, About(snapshot_bytes=snapshots), LIMITS)}


def test_reading_this_machine_yields_plausible_values() -> None:
    reading = read_machine(About())
    assert codec.build(MachineReading, codec.plain(reading)) == reading
    assert reading.memory is not None and 0 < reading.memory.available <= reading.memory.total
    assert reading.ticks is not None and reading.ticks[0] > reading.ticks[1] >= 0
    assert reading.cpus == os.cpu_count() and reading.booted > 0
    assert tuple(judged(reading)) == FINDINGS


def test_healthy_host_passes_every_check() -> None:
    assert {f.verdict for f in judged(WELL, 20 * GIB).values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("memory", "snapshots", "verdict", "remedy", "text"),
    [
        (Memory(2 * GIB, 64 * GIB), 0, Verdict.MONITOR, Remedy.NONE, "2048 of 65536 MiB"),
        (Memory(GIB // 2, 64 * GIB), 0, Verdict.SUSPECT, Remedy.AVOID, "(0.8%)"),
        (Memory(20 * GIB, 64 * GIB, GIB), 30 * GIB, Verdict.SUSPECT, Remedy.AVOID, "a reserve need 33997 MiB"),
        (
            Memory(20 * GIB, 64 * GIB, 30 * GIB),
            30 * GIB,
            Verdict.MONITOR,
            Remedy.WATCH,
            "30720 MiB are in use as shared",
        ),
        (Memory(60 * GIB, 64 * GIB), 70 * GIB, Verdict.MONITOR, Remedy.SETUP, "a reserve need 74957 MiB"),
        (None, 0, Verdict.UNKNOWN, Remedy.NONE, "cannot be read"),
    ],
)
def test_low_memory_is_judged_with_the_snapshots_it_must_hold(
    memory: Memory | None, snapshots: int, verdict: Verdict, remedy: Remedy, text: str
) -> None:
    found = judged(replace(WELL, memory=memory), snapshots)["memory"]
    assert (found.verdict, found.remedy) == (verdict, remedy) and text in found.evidence


def test_swap_in_use_is_monitored() -> None:
    found = judged(replace(WELL, memory=Memory(60 * GIB, 64 * GIB, 0, 8 * GIB)))["swap"]
    assert found.verdict is Verdict.MONITOR and found.evidence == "8192 MiB are in swap (12.5% of memory)"


def test_meminfo_is_parsed() -> None:
    text = "MemTotal: 1000 kB\nMemAvailable:   400 kB\nShmem: 30 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\nHuge: 3\n"
    assert parse_meminfo(text) == Memory(400 << 10, 1000 << 10, 30 << 10, 30 << 10)
    assert parse_meminfo("MemTotal: 1000 kB\n") is None and parse_meminfo("") is None


@pytest.fixture
def controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSOM_SYSFS", str(tmp_path))
    root = tmp_path / "devices/system/edac/mc"
    for name, corrected, uncorrected in (("mc0", 3, 0), ("mc1", 0, 2)):
        (root / name).mkdir(parents=True)
        (root / name / "ce_count").write_text(f"{corrected}\n")
        (root / name / "ue_count").write_text(f"{uncorrected}\n")
    (root / "power").mkdir()
    return root


def test_memory_errors_since_boot_are_monitored(controllers: Path) -> None:
    found = judged(replace(WELL, edac=read_edac()))["edac"]
    assert (found.verdict, found.device) == (Verdict.MONITOR, "mc1")
    assert found.evidence == "mc0: ue_count 0, ce_count 3, mc1: ue_count 2, ce_count 0 since the boot"
    assert not judged(replace(WELL, edac=()))["edac"].applies


def test_new_uncorrected_memory_error_is_a_fail(controllers: Path) -> None:
    former = replace(WELL, edac=read_edac(), ticks=None)
    assert judge_machine_changes("n1", former, former, 30.0, About(), LIMITS) == ()
    (controllers / "mc0" / "ue_count").write_text("1\n")
    (found,) = judge_machine_changes("n1", former, replace(former, edac=read_edac()), 30.0, About(), LIMITS)
    assert (found.check, found.verdict, found.remedy, found.device) == (
        "edac_new", Verdict.FAIL, Remedy.REPAIR, "mc0",
    )  # fmt: skip
    assert found.evidence == "mc0: uncorrected errors, ue_count +1 in 30 s (1 in total)"


@pytest.mark.parametrize(("more", "verdicts"), [(9, []), (10, [Verdict.MONITOR]), (-3, [])])
def test_many_new_corrected_memory_errors_are_monitored(controllers: Path, more: int, verdicts: list[Verdict]) -> None:
    former = replace(WELL, edac=read_edac(), ticks=None)
    (controllers / "mc0" / "ce_count").write_text(f"{3 + more}\n")
    found = judge_machine_changes("n1", former, replace(former, edac=read_edac()), 30.0, About(), LIMITS)
    assert [f.verdict for f in found] == verdicts


def test_stolen_cpu_time_is_monitored() -> None:
    (found,) = judge_machine_changes("n1", WELL, replace(WELL, ticks=(2000, 80)), 30.0, About(), LIMITS)
    assert (found.check, found.verdict) == ("steal", Verdict.MONITOR) and found.evidence.startswith("7.0% of CPU time")
    (found,) = judge_machine_changes("n1", WELL, replace(WELL, ticks=(2000, 20)), 30.0, About(), LIMITS)
    assert found.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("change", "check", "verdict", "says"),
    [
        ({"load": 65.0}, "load", Verdict.MONITOR, "load 65.0 on 32 CPUs"),
        ({"booted": 40.0}, "uptime", Verdict.MONITOR, "booted 40 s ago"),
        ({"clock": Clock("hpet", True, 0.1)}, "clocksource", Verdict.MONITOR, "is hpet, which is slow"),
        ({"clock": Clock("", True, 0.1)}, "clocksource", Verdict.UNKNOWN, "clock source is unknown"),
        ({"clock": Clock("tsc", False, 16.0)}, "clock_sync", Verdict.MONITOR, "STA_UNSYNC"),
        ({"clock": Clock("tsc", None, None)}, "clock_sync", Verdict.UNKNOWN, "does not say"),
    ],
)
def test_one_unusual_state_changes_one_finding(
    change: dict[str, object], check: str, verdict: Verdict, says: str
) -> None:
    odd = {c: f for c, f in judged(replace(WELL, **change)).items() if f.verdict is not Verdict.PASS}  # type: ignore[arg-type]
    assert list(odd) == [check]
    assert odd[check].verdict is verdict and says in odd[check].evidence


def test_reading_the_clock_of_this_machine() -> None:
    clock = read_clock()
    assert clock.synchronized is not None and clock.error is not None and 0 <= clock.error <= 3600
    assert len(judge_clock("n1", clock)) == 2


def verdicts(offsets: dict[str, tuple[float, float]]) -> dict[str, Verdict]:
    return {f.node: f.verdict for f in judge_clocks(offsets, ClockLimits())}


def test_clocks_are_compared_with_the_median() -> None:
    P, M, S = Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT
    assert judge_clocks({}, ClockLimits()) == ()
    assert verdicts({"a": (0.0, 0.1)}) == {"a": P}
    assert verdicts({"a": (0.0, 0.1), "b": (0.2, 0.1), "c": (-400.0, 0.1)}) == {"a": P, "b": P, "c": S}
    assert verdicts({"a": (0.0, 0.1), "b": (0.2, 0.1), "c": (5.0, 0.1)}) == {"a": P, "b": P, "c": M}
    assert verdicts({"a": (0.0, 0.1), "b": (0.2, 0.1), "c": (5.0, 4.5)})["c"] is P, "the measurement may be off"
    assert verdicts({"a": (-90.0, 0.1), "b": (-90.2, 0.1), "c": (-90.0, 0.1)}) == {"a": P, "b": P, "c": P}, (
        "the asking host is off"
    )
    assert verdicts({"a": (0.0, 0.1), "b": (900.0, 0.1)}) == {"a": M, "b": M}
    found = judge_clocks({"a": (0.0, 0.01), "b": (0.0, 0.01), "c": (2.5, 0.01)}, ClockLimits())[2]
    assert found.evidence == "its wall clock is +2.500 s from the median of 3 nodes (measured to 0.010 s)"


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=3, max_size=9),
    st.floats(-1e6, 1e6),
)
def test_error_of_the_asking_hosts_clock_does_not_matter(offsets: list[float], shift: float) -> None:
    """Offsets are rounded to milliseconds, because the last digits of a float do change."""
    here = {str(n): (round(at, 3), 0.0005) for n, at in enumerate(offsets)}
    there = {node: (at + round(shift), error) for node, (at, error) in here.items()}
    near = any(abs(abs(a - b) - limit) < 0.01 for a, _ in here.values() for b, _ in here.values() for limit in (1, 300))
    if not near:
        assert verdicts(here) == verdicts(there)
