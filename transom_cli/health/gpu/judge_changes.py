"""What has changed on a node's GPUs between two looks: deltas, not totals. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.judge_count import judge_recovery
from transom_cli.health.gpu.judge_links import down
from transom_cli.health.gpu.judge_state import hardware_slowdown
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import Gpu, NvmlReading
from transom_cli.health.gpu.telling import Odd, about_gpu, worst_first

Pair = tuple[Gpu, Gpu]  # one GPU, at the former look and now

_CRC = ("crc_flit", "crc_data")


def judge_nvml_changes(
    node: str, former: NvmlReading, reading: NvmlReading, seconds: float, about: About, limits: GpuLimits
) -> tuple[Finding, ...]:
    """Only what is new, none where nothing is; `seconds` lie between the readings.

    A counter that has gone down was reset, and says nothing.
    """
    if former.absent or reading.absent:
        return ()
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus if gpu.uuid}
    pairs = [(old, by_uuid[old.uuid]) for old in former.gpus if old.uuid in by_uuid]
    found = [about_gpu("gpu_lost", node, odd) for odd in _vanished(former, reading, seconds)]
    for old, new in pairs:
        found += _memory(node, old, new)
        found += _connections(node, old, new, seconds, limits)
        if fresh := [name for name in hardware_slowdown(new) if name not in hardware_slowdown(old)]:
            said = f"{', '.join(fresh)} has set in ({new.heat.now} degrees, SM clock {new.sm_clock} MHz)"
            found.append(about_gpu("gpu_clocks", node, Odd(new, Verdict.MONITOR, said, Remedy.WATCH)))
    acted = tuple(new for old, new in pairs if new.recovery and new.recovery != old.recovery)
    return tuple(worst_first(found + (judge_recovery(node, acted) if acted else [])))


def new_link_errors(old: Gpu, new: Gpu, seconds: float, limits: GpuLimits) -> list[str]:
    """ "link 3 replays +2", for each counter that has grown; CRC errors count from a rate on."""
    before = {(link.number, name): count for link in old.links for name, count in link.errors}
    found = []
    for link in new.links:
        for name, count in link.errors:
            more = count - before.get((link.number, name), 0) if name in old.link_counters else 0
            tolerated = limits.gpu_nvlink_crc_rate * seconds if name in _CRC else 0
            if more > tolerated:
                found.append(f"link {link.number} {name} +{more}")
    return found


def _vanished(former: NvmlReading, reading: NvmlReading, seconds: float) -> Iterator[Odd]:
    """GPUs that NVML no longer counts. One that it counts but cannot open has no UUID: `gpu_lost` tells of it."""
    if reading.barred > former.barred:
        return  # they are kept from this process, and may be well
    there = {gpu.uuid for gpu in reading.gpus}
    unnamed = {gpu.index for gpu in reading.gpus if not gpu.uuid}
    for old in former.gpus:
        if old.uuid and old.uuid not in there and old.index not in unnamed:
            said = f"it was there {seconds:.0f} s ago and is not any more"
            yield Odd(old, Verdict.FAIL, said, Remedy.REBOOT)


def _memory(node: str, old: Gpu, new: Gpu) -> Iterator[Finding]:
    more = _growth(old.ecc.uncorrected_volatile, new.ecc.uncorrected_volatile)
    if more:
        said = f"{more} new uncorrected ECC errors ({new.ecc.uncorrected_volatile} since its last reset)"
        yield about_gpu("gpu_ecc", node, Odd(new, Verdict.FAIL, said, Remedy.RESET_GPU))
    if old.sram and new.sram:
        more = _growth(old.sram.uncorrected_volatile, new.sram.uncorrected_volatile)
        if more:
            said = f"{more} new uncorrected SRAM errors ({new.sram.uncorrected_volatile} since its last reset)"
            yield about_gpu("gpu_sram", node, Odd(new, Verdict.FAIL, said, Remedy.RESET_GPU))


def _connections(node: str, old: Gpu, new: Gpu, seconds: float, limits: GpuLimits) -> Iterator[Finding]:
    fallen = sorted(set(down(new)) - set(down(old)))
    if fallen and old.links and not (old.mig or new.mig):
        said = f"NVLinks that were up are down: {', '.join(map(str, fallen))}"
        yield about_gpu("gpu_nvlink", node, Odd(new, Verdict.FAIL, said, Remedy.RESET_GPU))
    if errors := new_link_errors(old, new, seconds, limits):
        said = f"NVLink errors within {seconds:.0f} s: {', '.join(errors[:6])}"
        yield about_gpu("gpu_nvlink_errors", node, Odd(new, Verdict.MONITOR, said, Remedy.WATCH))
    replays = _growth(old.pcie.replays, new.pcie.replays)
    if seconds > 0 and replays * 60 / seconds > limits.gpu_pcie_replay_rate:
        said = f"{replays} PCIe replays within {seconds:.0f} s (limit {limits.gpu_pcie_replay_rate:g} a minute)"
        yield about_gpu("gpu_pcie", node, Odd(new, Verdict.MONITOR, said, Remedy.WATCH))


def _growth(old: int | None, new: int | None) -> int:
    return max(0, new - old) if old is not None and new is not None else 0
