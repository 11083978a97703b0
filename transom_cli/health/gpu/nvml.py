"""Reads the node's GPUs through NVML (nvidia-ml-py). Run it in a child with a deadline: a driver that hangs holds it.

Field by field, since each driver and each GPU lacks some: what is not supported is None, and only a GPU that NVML gives
up on (lost, reset required) ends its own reading. Not exercised on hardware: the calls and their layouts are
nvidia-ml-py's, tried against a stub of the library (`sandbox.nvml_stub`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.core.rootline import clean
from transom_cli.health.about import About, Tier
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.limits import LEFTOVER
from transom_cli.health.gpu.nvml_device import Device, Gone, words
from transom_cli.health.gpu.nvml_links import read_fabric, read_links, read_switched
from transom_cli.health.gpu.reading import Ecc, Gpu, Heat, NvmlReading, Pages, Pcie, Power, Process, Rows, Sram
from transom_cli.health.node.sysfiles import names, read_text, sysfs

DEVICES = Path("/dev")
_NVIDIA = "0x10de"  # PCI vendor
RECOVERY_ACTION = 230  # field id; drivers from 570 on
SETTLES = 5  # looks, a second apart, before memory counts as held: a killed training gives it back within seconds


def read_nvml(about: About) -> NvmlReading:
    """Never raises for what the driver may do; it may hang where the driver does."""
    begun, started = time.time(), time.monotonic()
    try:
        import pynvml as nvml
    except ImportError as error:
        return NvmlReading(begun, started, absent=clean(str(error)), absent_code=r.NO_BINDING)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        foreign = error.value == r.LIBRARY_NOT_FOUND and not _any_device()
        return NvmlReading(begun, started, absent=words(error), absent_code=error.value, foreign=foreign)
    try:
        found = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        if about.tier.includes(Tier.QUICK):
            found = _settled(nvml, found)
        seen = tuple(gpu for gpu in found if gpu.trouble_code != r.NO_PERMISSION)
        cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion")
        return NvmlReading(
            begun,
            started,
            driver=clean(str(_ask(nvml, "nvmlSystemGetDriverVersion") or "")),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            nvml=clean(str(_ask(nvml, "nvmlSystemGetNVMLVersion") or "")),
            gpus=seen,
            barred=len(found) - len(seen) or (closed_devices() if len(seen) < about.gpus else 0),
            granted=_granted(),
        )
    except nvml.NVMLError as error:
        return NvmlReading(begun, started, absent=words(error), absent_code=error.value)
    finally:
        _ask(nvml, "nvmlShutdown")


def _any_device() -> bool:
    """Whether the machine has any NVIDIA device, with a driver or without; True where its bus cannot be read."""
    bus = sysfs("bus/pci/devices")
    found = names(bus)
    return not found or any(read_text(bus / name / "vendor") == _NVIDIA for name in found)


def _granted() -> int | None:
    """By Slurm's word to this very process: nodes of one job need not have been granted as many."""
    told = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return int(told) if told.isdecimal() else None


def _ask(nvml: Any, call: str) -> Any:
    try:
        return getattr(nvml, call)()
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Gpu(index, trouble=words(error), trouble_code=error.value)
    device = Device(nvml, handle)
    known: dict[str, Any] = {}
    try:
        for part in _PARTS:
            known.update(part(device))
    except Gone as gone:
        known.update(trouble=str(gone), trouble_code=gone.code)
    return Gpu(index, unread=tuple(device.unread), **known)


def _place(device: Device) -> dict[str, Any]:
    """Part by part: what is known of a GPU when it turns out to be lost is still told."""
    pci = device.get("nvmlDeviceGetPciInfo")
    return {"bus_id": "" if pci is None else clean(str(pci.busId))}


def _identity(device: Device) -> dict[str, Any]:
    return {
        "uuid": device.text("nvmlDeviceGetUUID"),
        "serial": device.text("nvmlDeviceGetSerial"),
        "name": device.text("nvmlDeviceGetName"),
        "vbios": device.text("nvmlDeviceGetVbiosVersion"),
    }


def _recovery(device: Device) -> dict[str, Any]:
    return {"recovery": device.fields([RECOVERY_ACTION])[0]}


def _memory(device: Device) -> dict[str, Any]:
    on, on_next = device.switches("nvmlDeviceGetEccMode")
    counts = [device.get("nvmlDeviceGetTotalEccErrors", kind, since) for kind in (1, 0) for since in (0, 1)]
    sram = device.fill("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    rows = device.get("nvmlDeviceGetRemappedRows")
    return {
        "ecc_on": on,
        "ecc_on_next": on_next,
        "ecc": Ecc(*counts),
        "sram": sram
        and Sram(
            uncorrected_volatile=sram.volatileUncParity + sram.volatileUncSecDed,
            uncorrected_aggregate=sram.aggregateUncParity + sram.aggregateUncSecDed,
            corrected_volatile=sram.volatileCor,
            exceeded=bool(sram.bThresholdExceeded),
        ),
        "rows": rows and Rows(rows[0], rows[1], bool(rows[2]), bool(rows[3])),
        "pages": None if rows else _pages(device),
    }


def _pages(device: Device) -> Pages | None:
    single, double = (device.get("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1))
    if single is None or double is None:
        return None
    return Pages(len(single), len(double), bool(device.get("nvmlDeviceGetRetiredPagesPendingStatus")))


def _connections(device: Device) -> dict[str, Any]:
    sides = ("nvmlDeviceGetCurrPcieLink", "nvmlDeviceGetMaxPcieLink")
    generation, generation_max = (device.get(f"{side}Generation") for side in sides)
    width, width_max = (device.get(f"{side}Width") for side in sides)
    replays = device.get("nvmlDeviceGetPcieReplayCounter")
    links, counters = read_links(device)
    return {
        "links": links,
        "link_counters": counters,
        "switched": read_switched(device, links),
        "fabric": read_fabric(device),
        "pcie": Pcie(generation, generation_max, width, width_max, replays),
    }


def _state(device: Device) -> dict[str, Any]:
    reasons = device.get("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # drivers before 535
        reasons = device.get("nvmlDeviceGetCurrentClocksThrottleReasons")
    usage, limit, default = (
        device.get(f"nvmlDeviceGet{what}")
        for what in ("PowerUsage", "EnforcedPowerLimit", "PowerManagementDefaultLimit")
    )
    load = device.get("nvmlDeviceGetUtilizationRates")
    mig, mig_next = device.switches("nvmlDeviceGetMigMode")
    return {
        "reasons": reasons,
        "sm_clock": device.get("nvmlDeviceGetClockInfo", 1),
        "memory_clock": device.get("nvmlDeviceGetClockInfo", 2),
        "busy": None if load is None else int(load.gpu),
        "heat": Heat(
            now=device.get("nvmlDeviceGetTemperature", 0),
            slowdown=device.get("nvmlDeviceGetTemperatureThreshold", 1),
            shutdown=device.get("nvmlDeviceGetTemperatureThreshold", 0),
            margin=device.get("nvmlDeviceGetMarginTemperature"),
        ),
        "power": Power(*(None if found is None else found / 1000 for found in (usage, limit, default))),
        "persistent": device.switch("nvmlDeviceGetPersistenceMode"),
        "mig": mig,
        "mig_next": mig_next,
    }


def _held(device: Device) -> dict[str, Any]:
    # The newer structure leaves out what the driver keeps for itself, some 500 MiB on a large GPU.
    found = device.get("nvmlDeviceGetMemoryInfo", getattr(device.nvml, "nvmlMemory_v2", None))
    if found is None:
        found = device.get("nvmlDeviceGetMemoryInfo")
    running = device.get("nvmlDeviceGetComputeRunningProcesses") or ()
    return {
        "memory_used": None if found is None else int(found.used),
        "memory_total": None if found is None else int(found.total),
        "processes": tuple(Process(int(p.pid), p.usedGpuMemory) for p in running),
    }


_PARTS: tuple[Callable[[Device], dict[str, Any]], ...] = (
    _place,
    _identity,
    _recovery,
    _memory,
    _connections,
    _state,
    _held,
)


def _settled(nvml: Any, found: list[Gpu]) -> list[Gpu]:
    """Before a launch: memory that a former process is just giving back is waited for."""
    for _ in range(SETTLES):
        holding = {gpu.index for gpu in found if gpu.readable and (gpu.memory_used or 0) > LEFTOVER}
        if not holding:
            break
        time.sleep(1.0)
        found = [_again(nvml, gpu) if gpu.index in holding else gpu for gpu in found]
    return found


def _again(nvml: Any, gpu: Gpu) -> Gpu:
    try:
        return replace(gpu, **_held(Device(nvml, nvml.nvmlDeviceGetHandleByIndex(gpu.index))))
    except Gone as gone:
        return replace(gpu, trouble=str(gone), trouble_code=gone.code)
    except nvml.NVMLError as error:
        return replace(gpu, trouble=words(error), trouble_code=error.value)


def closed_devices() -> int:
    """Devices that the step's control group keeps from us. Only opened, and only such as say no before the driver."""
    closed = 0
    for path in DEVICES.glob("nvidia[0-9]*"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except PermissionError:
            closed += 1
        except OSError:
            continue
    return closed
