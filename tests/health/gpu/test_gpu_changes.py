"""GPUs during training: what is new, what persists, and what recovers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.core.codec import build
from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.check import judge_nvml_changes
from transom_cli.health.gpu.monitor import GpuMonitor, Windows
from transom_cli.health.gpu.reading import GPU_IS_LOST, Ecc, Gpu, GpuLimits, Link, NvmlReading, Pcie, Sram

RECORDING = Path(__file__).parents[1] / "data" / "gpu" / "composed-h100x8-healthy.json"
BASE = replace(build(NvmlReading, json.loads(RECORDING.read_text())["readings"]["n1"]["gpu"]["reading"]), mono=1200.0)
ABOUT, LIMITS = About(tier=Tier.WATCH, gpus=8), GpuLimits()
P, M, S, F = Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL


def at(seconds: float, index: int = 2, reading: NvmlReading = BASE, **changes: Any) -> NvmlReading:
    gpus = tuple(replace(gpu, **changes) if gpu.index == index else gpu for gpu in reading.gpus)
    return replace(reading, gpus=gpus, mono=BASE.mono + seconds)


def changes(former: NvmlReading, reading: NvmlReading) -> list[tuple[str, str, Verdict]]:
    found = judge_nvml_changes("n1", former, reading, reading.mono - former.mono, ABOUT, LIMITS)
    return [(f.check, f.device, f.verdict) for f in found]


def links(**errors: int) -> tuple[Link, ...]:
    return (Link(0, True, tuple(errors.items())), *BASE.gpus[2].links[1:])


def test_nothing_new_is_no_finding() -> None:
    worn = at(0, ecc=Ecc(7, 9, 5, 5), links=links(replays=400), pcie=Pcie(5, 5, 16, 16, 9000))
    assert changes(BASE, at(30)) == changes(worn, at(30, reading=worn)) == []
    assert changes(worn, at(30)) == [], "counters that begin again were reset"


def test_a_new_uncorrected_error_is_a_failure_at_once() -> None:
    worn = at(0, ecc=Ecc(7, 9, 0, 0), sram=Sram(1, 1, 0, False))
    assert changes(worn, at(30, ecc=Ecc(8, 10, 0, 0))) == [("gpu_ecc", "GPU-h100-0002", F)]
    assert changes(worn, at(30, reading=worn, sram=Sram(2, 2, 0, False))) == [("gpu_sram", "GPU-h100-0002", F)]


def test_vanished_gpu_and_lost_gpu() -> None:
    fewer = replace(at(30), gpus=BASE.gpus[:7])
    found = judge_nvml_changes("n1", BASE, fewer, 30.0, ABOUT, LIMITS)
    assert [(f.check, f.device, f.serial, f.verdict, f.remedy) for f in found] == [
        ("gpu_lost", "GPU-h100-0007", "1652323000007", F, Remedy.REBOOT)
    ]
    assert "was there 30 s ago" in found[0].evidence
    lost = replace(at(30), gpus=(*BASE.gpus[:7], Gpu(7, trouble="GPU is lost", trouble_code=GPU_IS_LOST)))
    assert changes(BASE, lost) == [], "it is counted, and `gpu_lost` reports its state"
    assert changes(BASE, NvmlReading(absent="Driver Not Loaded", absent_code=9)) == []
    assert changes(BASE, replace(fewer, barred=1)) == [], "kept from the watcher, and maybe well"
    sliced = at(30, mig=True, links=tuple(replace(link, up=False) for link in BASE.gpus[2].links))
    assert changes(BASE, sliced) == [], "its links are not used any more"


def test_a_lost_gpu_keeps_the_name_that_it_had() -> None:
    follow = GpuMonitor("n1", ABOUT, LIMITS)
    follow.judge(BASE)
    lost = replace(at(30), gpus=(*BASE.gpus[:7], Gpu(7, trouble="GPU is lost", trouble_code=GPU_IS_LOST)))
    bad = [f for f in follow.judge(lost) if f.verdict is F]
    assert [(f.check, f.device, f.serial) for f in bad] == [("gpu_lost", "GPU-h100-0007", "1652323000007")]


def test_links_and_lanes() -> None:
    assert changes(BASE, at(30, links=(Link(0, False), *BASE.gpus[2].links[1:]))) == [
        ("gpu_nvlink", "GPU-h100-0002", F)
    ]
    assert changes(BASE, at(30, links=links(replays=1))) == [("gpu_nvlink_errors", "GPU-h100-0002", M)]
    assert changes(BASE, at(30, links=links(crc_flit=3000))) == [], "100 a second are tolerated"
    assert changes(BASE, at(30, links=links(crc_flit=3001))) == [("gpu_nvlink_errors", "GPU-h100-0002", M)]
    assert changes(at(0, link_counters=()), at(30, links=links(replays=9))) == [], "they were not counted before"
    assert changes(BASE, at(30, pcie=Pcie(5, 5, 16, 16, 4))) == [], "8 replays a minute are tolerated"
    assert changes(BASE, at(30, pcie=Pcie(5, 5, 16, 16, 5))) == [("gpu_pcie", "GPU-h100-0002", M)]


def test_what_the_driver_asks_for_now() -> None:
    assert changes(BASE, at(30, recovery=1)) == [("gpu_recovery", "GPU-h100-0002", F)]
    assert changes(at(0, recovery=1), at(30, recovery=1)) == [], "it did before"
    assert changes(BASE, at(30, reasons=0x48)) == [("gpu_clocks", "GPU-h100-0002", M)]


def looks(follow: GpuMonitor, readings: list[NvmlReading], check: str) -> list[Verdict]:
    return [max((f.verdict for f in follow.judge(x) if f.check == check), key=(P, M, S, F).index) for x in readings]


def test_persistent_link_errors_make_a_node_suspect() -> None:
    """NVRx's rule: more than 15 of the last 30 minutes with a new error."""
    follow = GpuMonitor("n1", ABOUT, LIMITS)
    follow.judge(BASE)
    growing = [at(60.0 * n, links=links(replays=n)) for n in range(1, 20)]
    verdicts = looks(follow, growing, "gpu_nvlink_errors")
    assert verdicts == [M] * 15 + [S] * 4
    quiet = [at(60.0 * n, links=links(replays=19)) for n in range(20, 60)]
    verdicts = looks(follow, quiet, "gpu_nvlink_errors")
    assert verdicts[0] is S and verdicts[-1] is P, "half an hour later it is forgotten"


def test_slowdown_that_lasts_makes_a_node_suspect() -> None:
    """gpud's rule: 0.6 a minute over 10 minutes."""
    follow = GpuMonitor("n1", ABOUT, LIMITS)
    verdicts = looks(follow, [at(30.0 * n, reasons=0x40) for n in range(14)], "gpu_clocks")
    assert verdicts.index(S) == 10 and set(verdicts[:10]) == {M} and set(verdicts[10:]) == {S}
    assert (
        looks(
            GpuMonitor("n1", ABOUT, LIMITS),
            [at(30.0 * n, reasons=0x40 * (n % 20 == 0)) for n in range(60)],
            "gpu_clocks",
        ).count(S)
        == 0
    )


def test_gpu_that_recovers_gets_a_pass() -> None:
    follow = GpuMonitor("n1", ABOUT, LIMITS)
    hot = follow.judge(at(0, reasons=0x40))
    assert [f.device for f in hot if f.check == "gpu_clocks"] == ["GPU-h100-0002"], "no PASS of the others beside it"
    cool = {f.device: f for f in follow.judge(at(30)) if f.check == "gpu_clocks"}
    assert {device: f.verdict for device, f in cool.items()} == {"": P, "GPU-h100-0002": P}
    assert cool["GPU-h100-0002"].evidence.startswith("no longer: GPU 2")
    assert [f.device for f in follow.judge(at(60)) if f.check == "gpu_clocks"] == [""], "reported once"


def test_one_finding_for_each_check_and_gpu() -> None:
    follow = GpuMonitor("n1", ABOUT, LIMITS)
    follow.judge(BASE)
    found: tuple[Finding, ...] = follow.judge(at(30, ecc=Ecc(2, 2, 0, 0), recovery=2))
    assert len({(f.check, f.device) for f in found}) == len(found)
    assert {f.check: f.verdict for f in found if f.device} == {"gpu_ecc": F, "gpu_recovery": F}


def test_windows_forget() -> None:
    windows = Windows(seconds=10, kept=3)
    for second in (0, 1, 12, 25):
        windows.add("gpu", second)
    assert [windows.count("gpu", second) for second in (25, 35, 45, 55)] == [3, 2, 1, 0]
    assert windows.count("another", 25) == 0
