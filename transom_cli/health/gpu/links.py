"""GPU connections: NVLink, the fabric of NVLink switches, and PCIe. Judges are pure.

A link that is down or narrow is proven to be one GPU's fault if its siblings are wired alike and do better: GPUs of one
model on NVLink switches or in PCIe slots. If all siblings show the same, the cause may be the machine's design or a
setting; bridges between cards may be missing on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.reading import (
    Anomaly,
    Fabric,
    Gpu,
    GpuLimits,
    Link,
    NvmlReading,
    Pcie,
    gpu_finding,
    gpu_findings,
    growth,
    spread,
)

if TYPE_CHECKING:
    from transom_cli.health.gpu.nvml import Device

FINDINGS = ("gpu_nvlink", "gpu_nvlink_errors", "gpu_fabric", "gpu_pcie")
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest header; a GPU refuses the first number that it does not have
COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# Field IDs of the counters that NVRx watches (GPUHealthCheck), if driver and link are new enough.
_FIELDS = (("recoveries", 215), ("retries", 295), ("receive_errors", 208))
# nvmlDeviceGetNvLinkErrorCounter, for older ones (up to Hopper).
_LEGACY = (("replays", 0), ("recoveries", 1), ("crc_flit", 2), ("crc_data", 3))
_CRC = ("crc_flit", "crc_data")

# NVML_GPU_FABRIC_HEALTH_MASK: two bits each, 1 is true. gpud calls a GPU with any of these unhealthy.
_HEALTH = ((0, "degraded bandwidth"), (2, "route recovery"), (4, "route unhealthy"), (6, "access timeout recovery"))
_CONFIGURATION = (8, 0xF)  # 0 not supported, 1 correct; any other value is a configuration error
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle


def read_connections(device: Device) -> dict[str, Any]:
    sides = ("nvmlDeviceGetCurrPcieLink", "nvmlDeviceGetMaxPcieLink")
    generation, generation_max = (device.get(f"{side}Generation") for side in sides)
    width, width_max = (device.get(f"{side}Width") for side in sides)
    replays = device.get("nvmlDeviceGetPcieReplayCounter")
    links, counters = _read_links(device)
    return {
        "links": links,
        "link_counters": counters,
        "switched": _read_switched(device, links),
        "fabric": _read_fabric(device),
        "pcie": Pcie(generation, generation_max, width, width_max, replays),
    }


def _read_links(device: Device) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Return the links and the names of the errors that they count."""
    states = []
    for number in range(MAX_LINKS):
        state = device.get("nvmlDeviceGetNvLinkState", number)
        if state is None:
            break
        states.append(bool(state))
    counts = _read_counts(device, len(states))
    counters = tuple(dict.fromkeys(name for (_, name) in counts))
    links = []
    for number, up in enumerate(states):
        found = ((name, counts.get((number, name), 0)) for name in counters)
        links.append(Link(number, up, tuple((name, count) for name, count in found if count)))
    return tuple(links), counters


def _read_counts(device: Device, links: int) -> dict[tuple[int, str], int]:
    """Return error counts by link and name. Uses the older calls only if no newer field is supported."""
    wanted = [(number, name, field) for number in range(links) for name, field in _FIELDS]
    values = device.fields([(field, number) for number, _, field in wanted]) if wanted else []
    found = {
        (number, name): value for (number, name, _), value in zip(wanted, values, strict=True) if value is not None
    }
    if found:
        return found
    for number in range(links):
        for name, kind in _LEGACY:
            value = device.get("nvmlDeviceGetNvLinkErrorCounter", number, kind)
            if value is not None:
                found[number, name] = value
    return found


def _read_switched(device: Device, links: tuple[Link, ...]) -> bool | None:
    """Return whether the links lead to NVLink switches; None if no link is up."""
    for link in links:
        remote = device.get("nvmlDeviceGetNvLinkRemoteDeviceType", link.number) if link.up else None
        if remote is not None:
            return bool(remote == _SWITCH)
    return None


def _read_fabric(device: Device) -> Fabric | None:
    """Return None if the GPU is not part of a fabric (state 0, not supported)."""
    found = device.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t")
    if found is None or not found.state:
        return None
    cluster = bytes(found.clusterUuid).hex()
    return Fabric(found.state, found.status, found.healthMask, cluster if cluster.strip("0") else "", found.cliqueId)


def judge_links(node: str, reading: NvmlReading, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    linked = [gpu for gpu in gpus if gpu.links and not gpu.mig]  # under MIG the links are unused and may be off
    in_fabric = [gpu for gpu in gpus if gpu.fabric and not gpu.mig]
    on_pcie = [gpu for gpu in gpus if gpu.pcie.width and gpu.pcie.width_max]
    counted = [gpu for gpu in linked if gpu.link_counters]
    errors = sum(count for gpu in counted for link in gpu.links for _, count in link.errors)
    nvlink_text = f"{spread(len(gpu.links) for gpu in linked)} NVLinks each, all up"
    # Totals since the driver was loaded: only their growth is judged (`judge_link_changes`).
    errors_text = f"{errors} NVLink errors so far"
    pcie_text = (
        f"PCIe width {spread(gpu.pcie.width for gpu in on_pcie)},"
        f" generation {spread(gpu.pcie.generation for gpu in on_pcie)}"
        f" of {spread(gpu.pcie.generation_max for gpu in on_pcie)}"
    )
    fabric_text = "in the fabric, healthy"
    return [
        *gpu_findings("gpu_nvlink", node, len(linked), _nvlink(linked), nvlink_text, "no NVLink"),
        *gpu_findings("gpu_nvlink_errors", node, len(counted), (), errors_text, "no NVLink counters"),
        *gpu_findings("gpu_fabric", node, len(in_fabric), _fabric(in_fabric), fabric_text, "no NVLink fabric"),
        *gpu_findings("gpu_pcie", node, len(on_pcie), _pcie(on_pcie, limits), pcie_text, "PCIe width is not reported"),
    ]


def judge_link_changes(node: str, old: Gpu, new: Gpu, seconds: float, limits: GpuLimits) -> Iterator[Finding]:
    """Yield what happened to one GPU's links in the `seconds` between two readings."""
    fallen = sorted(set(_down(new)) - set(_down(old)))
    if fallen and old.links and not (old.mig or new.mig):
        text = f"NVLinks went down: {', '.join(map(str, fallen))}"
        yield gpu_finding("gpu_nvlink", node, Anomaly(new, Verdict.FAIL, text, Remedy.RESET_GPU))
    if errors := new_link_errors(old, new, seconds, limits):
        text = f"NVLink errors in {seconds:.0f} s: {', '.join(errors[:6])}"
        yield gpu_finding("gpu_nvlink_errors", node, Anomaly(new, Verdict.MONITOR, text, Remedy.WATCH))
    replays = growth(old.pcie.replays, new.pcie.replays)
    if seconds > 0 and replays * 60 / seconds > limits.gpu_pcie_replay_rate:
        text = f"{replays} PCIe replays in {seconds:.0f} s (limit {limits.gpu_pcie_replay_rate:g} a minute)"
        yield gpu_finding("gpu_pcie", node, Anomaly(new, Verdict.MONITOR, text, Remedy.WATCH))


def new_link_errors(old: Gpu, new: Gpu, seconds: float, limits: GpuLimits) -> list[str]:
    """Return "link 3 replays +2" for each counter that has grown; CRC errors count only above a rate."""
    before = {(link.number, name): count for link in old.links for name, count in link.errors}
    found = []
    for link in new.links:
        for name, count in link.errors:
            more = count - before.get((link.number, name), 0) if name in old.link_counters else 0
            tolerated = limits.gpu_nvlink_crc_rate * seconds if name in _CRC else 0
            if more > tolerated:
                found.append(f"link {link.number} {name} +{more}")
    return found


def _down(gpu: Gpu) -> tuple[int, ...]:
    return tuple(link.number for link in gpu.links if not link.up)


def _nvlink(gpus: list[Gpu]) -> Iterator[Anomaly]:
    alike = len({_down(gpu) for gpu in gpus}) == 1
    switched = any(gpu.switched for gpu in gpus)
    for gpu in gpus:
        links = _down(gpu)
        if not links:
            continue
        text = f"{len(links)} of its {len(gpu.links)} NVLinks are down: {', '.join(map(str, links))}"
        text += ", as on all GPUs of the node" if alike else ""
        if switched and not alike:
            yield Anomaly(gpu, Verdict.FAIL, text, Remedy.RESET_GPU)
        elif len(links) < len(gpu.links):
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.RESET_GPU)
        else:  # no bridge, or no fabric manager: not proof of a fault
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.SETUP)


def _fabric(gpus: list[Gpu]) -> Iterator[Anomaly]:
    """Never more than SUSPECT: a broken switch shows on every node behind it."""
    for gpu in gpus:
        fabric = gpu.fabric
        if fabric is None:
            continue
        if fabric.state != COMPLETED:
            state = _FABRIC_STATES.get(fabric.state, str(fabric.state))
            yield Anomaly(gpu, Verdict.SUSPECT, f"it has not joined its NVLink fabric: {state}", Remedy.AVOID)
        elif fabric.status:
            text = f"it could not join its NVLink fabric: NVML error {fabric.status}"
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.RESET_GPU)
        elif troubles := _troubles(fabric):
            text = f"NVLink fabric: {', '.join(troubles)} (health mask {fabric.health:#x})"
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.AVOID)


def _troubles(fabric: Fabric) -> list[str]:
    found = [name for shift, name in _HEALTH if fabric.health >> shift & 0x3 == 1]
    shift, width = _CONFIGURATION
    return found + ["incorrect configuration"] * (fabric.health >> shift & width > 1)


def _pcie(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Anomaly]:
    for gpu in gpus:
        pcie = gpu.pcie
        siblings = [other.pcie for other in gpus if other.name == gpu.name and other is not gpu]
        text = f"PCIe width {pcie.width} of {pcie.width_max}, generation {pcie.generation} of {pcie.generation_max}"
        if (pcie.width or 0) < (pcie.width_max or 0):
            if any(other.width == other.width_max for other in siblings):
                yield Anomaly(gpu, Verdict.FAIL, text, Remedy.REPAIR)
            elif siblings:
                yield Anomaly(gpu, Verdict.MONITOR, f"{text}, as on all GPUs of this model in the node", Remedy.SETUP)
            else:
                yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.REPAIR)
        elif (pcie.generation or 0) < (pcie.generation_max or 0) and not (gpu.reasons or 0) & _IDLE:
            loaded = (gpu.busy or 0) >= limits.gpu_busy  # an idle GPU may save power
            if loaded:
                yield Anomaly(gpu, Verdict.SUSPECT, f"{text}, while {gpu.busy}% busy", Remedy.REBOOT)
            elif gpu.reasons is not None:
                yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)
