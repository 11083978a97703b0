"""GPU state: clocks, temperature, power, memory in use before a launch, and modes. Judges are pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.gpu.reading import (
    Anomaly,
    Gpu,
    GpuLimits,
    Heat,
    NvmlReading,
    Power,
    Process,
    gpu_finding,
    gpu_findings,
    spread,
)

if TYPE_CHECKING:
    from transom_cli.health.gpu.nvml import Device

FINDINGS = ("gpu_clocks", "gpu_heat", "gpu_power", "gpu_leftover", "gpu_persistence", "gpu_mode")

# nvmlClocksEventReasons: slowdowns by the hardware, and by the driver because of heat.
HARDWARE = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
SOFTWARE_HEAT = 0x20
_MIB = 2**20


def read_state(device: Device) -> dict[str, Any]:
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


def read_memory_use(device: Device) -> dict[str, Any]:
    # The newer structure excludes what the driver reserves for itself, about 500 MiB on a large GPU.
    found = device.get("nvmlDeviceGetMemoryInfo", getattr(device.nvml, "nvmlMemory_v2", None))
    if found is None:
        found = device.get("nvmlDeviceGetMemoryInfo")
    running = device.get("nvmlDeviceGetComputeRunningProcesses") or ()
    return {
        "memory_used": None if found is None else int(found.used),
        "memory_total": None if found is None else int(found.total),
        "processes": tuple(Process(int(p.pid), p.usedGpuMemory) for p in running),
    }


def judge_state(node: str, reading: NvmlReading, about: About, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    in_use = about.tier is Tier.WATCH or 0 < about.gpus < len(reading.gpus)  # on a shared node, by another job
    clocks = [gpu for gpu in gpus if gpu.reasons is not None]
    clocks_text = f"no slowdown, SM clock {spread(gpu.sm_clock for gpu in clocks)} MHz"
    heat = [gpu for gpu in gpus if gpu.heat.now is not None]
    now, slowdown = spread(gpu.heat.now for gpu in heat), spread(gpu.heat.slowdown for gpu in heat)
    heat_text = f"{now} degrees, slowdown from {slowdown}"
    power = [gpu for gpu in gpus if gpu.power.limit is not None]
    power_text = f"{spread(gpu.power.usage for gpu in power)} W of {spread(gpu.power.limit for gpu in power)} W"
    modes = [gpu for gpu in gpus if gpu.persistent is not None]
    off = (Anomaly(g, Verdict.MONITOR, "persistence mode is off", Remedy.SETUP) for g in modes if not g.persistent)
    no_clocks, no_heat, no_limit = (f"{what} not reported" for what in ("clock reasons", "temperature", "power limit"))
    return [
        *gpu_findings("gpu_clocks", node, len(clocks), _clocks(clocks, in_use), clocks_text, no_clocks),
        *gpu_findings("gpu_heat", node, len(heat), _heat(heat, in_use, limits), heat_text, no_heat),
        *gpu_findings("gpu_power", node, len(power), _power(power), power_text, no_limit),
        *_judge_leftover(node, gpus, about, limits, in_use),
        *gpu_findings("gpu_persistence", node, len(modes), off, "persistence mode is on", "no persistence mode"),
        *gpu_findings("gpu_mode", node, len(gpus), _mode(gpus), _modes_text(gpus), "no GPUs"),
    ]


def judge_state_changes(node: str, old: Gpu, new: Gpu) -> Iterator[Finding]:
    if fresh := [name for name in hardware_slowdown(new) if name not in hardware_slowdown(old)]:
        text = f"{', '.join(fresh)} began ({new.heat.now} degrees, SM clock {new.sm_clock} MHz)"
        yield gpu_finding("gpu_clocks", node, Anomaly(new, Verdict.MONITOR, text, Remedy.WATCH))


def hardware_slowdown(gpu: Gpu) -> list[str]:
    return [name for bit, name in HARDWARE.items() if (gpu.reasons or 0) & bit]


def slowdowns(gpu: Gpu) -> list[str]:
    """Return why its clocks are held down: by the hardware, or by the driver because of heat."""
    heat = ["software thermal slowdown"] if (gpu.reasons or 0) & SOFTWARE_HEAT else []
    return hardware_slowdown(gpu) + heat


def warmth(heat: Heat, limits: GpuLimits) -> str:
    """Return light, moderate or heavy, relative to the device's own slowdown; "" if it does not report that."""
    if heat.now is None or (not heat.slowdown and heat.margin is None):
        return ""
    if not heat.slowdown:
        return "heavy" if (heat.margin or 0) <= 0 else "light"
    if heat.now >= heat.slowdown:
        return "heavy"
    return "moderate" if heat.now > heat.slowdown - limits.gpu_heat_margin else "light"


def _clocks(gpus: list[Gpu], in_use: bool) -> Iterator[Anomaly]:
    """A short slowdown under load is normal. An idle GPU before a launch has no reason for one."""
    for gpu in gpus:
        reasons = hardware_slowdown(gpu)
        text = f"(clock reasons {gpu.reasons:#x}, SM clock {gpu.sm_clock} MHz, {gpu.heat.now} degrees)"
        if reasons:
            verdict = Verdict.MONITOR if in_use else Verdict.SUSPECT
            yield Anomaly(gpu, verdict, f"{', '.join(reasons)} {text}", Remedy.REPAIR)
        elif (gpu.reasons or 0) & SOFTWARE_HEAT:
            yield Anomaly(gpu, Verdict.MONITOR, f"software thermal slowdown {text}", Remedy.WATCH)


def _heat(gpus: list[Gpu], in_use: bool, limits: GpuLimits) -> Iterator[Anomaly]:
    """SUSPECT only before a launch, when nothing heats the GPU; during training `gpu_clocks` shows the effect."""
    for gpu in gpus:
        heat, level = gpu.heat, warmth(gpu.heat, limits)
        if level not in ("moderate", "heavy"):
            continue
        if not heat.slowdown:
            text = f"{heat.now} degrees, {heat.margin} below its slowdown"
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)
            continue
        text = f"{heat.now} degrees; it slows down at {heat.slowdown} and switches off at {heat.shutdown}"
        if level == "heavy" and not in_use:
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.REPAIR)
        else:
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)


def _power(gpus: list[Gpu]) -> Iterator[Anomaly]:
    for gpu in gpus:
        limit, default = gpu.power.limit, gpu.power.default
        siblings = [other.power.limit for other in gpus if other.name == gpu.name]
        most = max((x for x in siblings if x is not None), default=limit)
        if limit is None or most is None:
            continue
        if limit < most:
            text = f"its power limit is {limit:.0f} W; others in the node have {most:.0f} W"
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.SETUP)
        elif default is not None and limit < default:
            text = f"its power limit is {limit:.0f} W; the default is {default:.0f} W"
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.SETUP)


def _judge_leftover(node: str, gpus: list[Gpu], about: About, limits: GpuLimits, in_use: bool) -> list[Finding]:
    if about.tier is Tier.WATCH:
        return [not_applicable("gpu_leftover", node, "the training may be using the GPUs")]
    known = [gpu for gpu in gpus if gpu.memory_used is not None]
    text = f"{spread((gpu.memory_used or 0) / _MIB for gpu in known)} MiB in use, no processes"
    return gpu_findings(
        "gpu_leftover", node, len(known), _leftover(known, limits, in_use), text, "memory use is not reported"
    )


def _leftover(gpus: list[Gpu], limits: GpuLimits, shared: bool) -> Iterator[Anomaly]:
    for gpu in gpus:
        used = gpu.memory_used or 0
        owners = ", ".join(f"pid {p.pid}" for p in gpu.processes[:8]) or "none visible to this user"
        text = f"{used / _MIB:.0f} MiB in use before the launch; processes: {owners}"
        if used > limits.gpu_leftover:
            if shared:
                text += "; they may belong to another job on this shared node"
                yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)
            else:
                yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.AVOID)
        elif gpu.processes:
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)


def _mode(gpus: list[Gpu]) -> Iterator[Anomaly]:
    ecc = any(gpu.ecc_on for gpu in gpus)
    for gpu in gpus:
        if gpu.ecc_on is False:
            text = "ECC is off" + (", but on for other GPUs of the node" if ecc else "")
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.SETUP)
        elif gpu.ecc_on != gpu.ecc_on_next or gpu.mig != gpu.mig_next:
            text = "a change of its ECC or MIG mode waits for a reset"
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.RESET_GPU)
        elif gpu.mig and not all(other.mig for other in gpus):
            yield Anomaly(gpu, Verdict.MONITOR, "MIG is on, but off for other GPUs of the node", Remedy.SETUP)


def _modes_text(gpus: list[Gpu]) -> str:
    ecc = "on" if any(gpu.ecc_on for gpu in gpus) else "not supported"
    return f"ECC {ecc}, MIG {'on' if any(gpu.mig for gpu in gpus) else 'off'}"
