"""Are the GPUs well connected: NVLink, the fabric of NVLink switches, PCIe? Pure.

A link that is down, or narrow, is proven to be one GPU's fault by its neighbours where those are wired alike: GPUs of
one kind on NVLink switches, or in PCIe slots. What all of them show alike may be how the machine is built, or a
setting; and bridges between cards may have been left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import Fabric, Gpu, NvmlReading
from transom_cli.health.gpu.telling import Odd, spread, told

COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED

# NVML_GPU_FABRIC_HEALTH_MASK: two bits each, 1 is true. gpud calls a GPU with any of these unhealthy.
_HEALTH = ((0, "degraded bandwidth"), (2, "route recovery"), (4, "route unhealthy"), (6, "access timeout recovery"))
_CONFIGURATION = (8, 0xF)  # 0 not supported, 1 none; else something is set up wrongly
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle


def judge_links(node: str, reading: NvmlReading, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    linked = [gpu for gpu in gpus if gpu.links and not gpu.mig]  # under MIG a GPU's links are not used, and may be off
    in_fabric = [gpu for gpu in gpus if gpu.fabric and not gpu.mig]
    on_pcie = [gpu for gpu in gpus if gpu.pcie.width and gpu.pcie.width_max]
    counted = [gpu for gpu in linked if gpu.link_counters]
    errors = sum(count for gpu in counted for link in gpu.links for _, count in link.errors)
    return [
        *told(
            "gpu_nvlink",
            node,
            len(linked),
            _nvlink(linked),
            f"{spread(len(gpu.links) for gpu in linked)} NVLinks each, all up",
            "no NVLink",
        ),
        # Since the driver was loaded: how fast they grow is judged (`judge_changes`), not how many there are.
        *told("gpu_nvlink_errors", node, len(counted), (), f"{errors} NVLink errors so far", "no NVLink counters"),
        *told("gpu_fabric", node, len(in_fabric), _fabric(in_fabric), "in the fabric, healthy", "no NVLink fabric"),
        *told(
            "gpu_pcie",
            node,
            len(on_pcie),
            _pcie(on_pcie, limits),
            f"PCIe width {spread(gpu.pcie.width for gpu in on_pcie)},"
            f" generation {spread(gpu.pcie.generation for gpu in on_pcie)}"
            f" of {spread(gpu.pcie.generation_max for gpu in on_pcie)}",
            "no PCIe width is told",
        ),
    ]


def down(gpu: Gpu) -> tuple[int, ...]:
    return tuple(link.number for link in gpu.links if not link.up)


def _nvlink(gpus: list[Gpu]) -> Iterator[Odd]:
    alike = len({down(gpu) for gpu in gpus}) == 1
    switched = any(gpu.switched for gpu in gpus)
    for gpu in gpus:
        links = down(gpu)
        if not links:
            continue
        said = f"{len(links)} of its {len(gpu.links)} NVLinks are down: {', '.join(map(str, links))}"
        said += ", as with all GPUs of the node" if alike else ""
        if switched and not alike:
            yield Odd(gpu, Verdict.FAIL, said, Remedy.RESET_GPU)
        elif len(links) < len(gpu.links):
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.RESET_GPU)
        else:  # no bridge, or no fabric manager: nothing is broken for sure
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.SETUP)


def _fabric(gpus: list[Gpu]) -> Iterator[Odd]:
    """SUSPECT at most: the fabric is more than this node, and a switch's trouble shows on every node behind it."""
    for gpu in gpus:
        fabric = gpu.fabric
        if fabric is None:
            continue
        if fabric.state != COMPLETED:
            state = _FABRIC_STATES.get(fabric.state, str(fabric.state))
            yield Odd(gpu, Verdict.SUSPECT, f"it has not joined its NVLink fabric: {state}", Remedy.AVOID)
        elif fabric.status:
            said = f"joining its NVLink fabric ended with NVML error {fabric.status}"
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.RESET_GPU)
        elif troubles := _troubles(fabric):
            said = f"NVLink fabric: {', '.join(troubles)} (health mask {fabric.health:#x})"
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.AVOID)


def _troubles(fabric: Fabric) -> list[str]:
    found = [name for shift, name in _HEALTH if fabric.health >> shift & 0x3 == 1]
    shift, width = _CONFIGURATION
    return found + ["incorrect configuration"] * (fabric.health >> shift & width > 1)


def _pcie(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Odd]:
    for gpu in gpus:
        pcie = gpu.pcie
        siblings = [other.pcie for other in gpus if other.name == gpu.name and other is not gpu]
        said = f"PCIe width {pcie.width} of {pcie.width_max}, generation {pcie.generation} of {pcie.generation_max}"
        if (pcie.width or 0) < (pcie.width_max or 0):
            if any(other.width == other.width_max for other in siblings):
                yield Odd(gpu, Verdict.FAIL, said, Remedy.REPAIR)
            elif siblings:
                yield Odd(gpu, Verdict.MONITOR, f"{said}, as with all its like in the node", Remedy.SETUP)
            else:
                yield Odd(gpu, Verdict.SUSPECT, said, Remedy.REPAIR)
        elif (pcie.generation or 0) < (pcie.generation_max or 0) and not (gpu.reasons or 0) & _IDLE:
            loaded = (gpu.busy or 0) >= limits.gpu_busy  # a GPU that idles may save power
            if loaded:
                yield Odd(gpu, Verdict.SUSPECT, f"{said}, while {gpu.busy} % busy", Remedy.REBOOT)
            elif gpu.reasons is not None:
                yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)
