"""Do the GPUs run as they should: clocks, heat, power, nothing left over, the modes that are set? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.health.about import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import Gpu, Heat, NvmlReading
from transom_cli.health.gpu.telling import Odd, spread, told

# nvmlClocksEventReasons: the hardware slows itself down; the driver does, for heat.
HARDWARE = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
SOFTWARE_HEAT = 0x20
_MIB = 2**20


def judge_state(node: str, reading: NvmlReading, about: About, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    working = about.tier is Tier.WATCH or 0 < about.gpus < len(reading.gpus)  # on a shared node, another job's
    clocked = [gpu for gpu in gpus if gpu.reasons is not None]
    warm = [gpu for gpu in gpus if gpu.heat.now is not None]
    powered = [gpu for gpu in gpus if gpu.power.limit is not None]
    persistence = [gpu for gpu in gpus if gpu.persistent is not None]
    return [
        *told(
            "gpu_clocks",
            node,
            len(clocked),
            _clocks(clocked, working),
            f"no slowdown, SM clock {spread(gpu.sm_clock for gpu in clocked)} MHz",
            "no clock reasons are told",
        ),
        *told(
            "gpu_heat",
            node,
            len(warm),
            _heat(warm, working, limits),
            f"{spread(gpu.heat.now for gpu in warm)} degrees,"
            f" slowdown from {spread(gpu.heat.slowdown for gpu in warm)}",
            "no temperature is told",
        ),
        *told(
            "gpu_power",
            node,
            len(powered),
            _power(powered),
            f"{spread(gpu.power.usage for gpu in powered)} W of {spread(gpu.power.limit for gpu in powered)} W",
            "no power limit is told",
        ),
        *_judge_leftover(node, gpus, about, limits, working),
        *told(
            "gpu_persistence",
            node,
            len(persistence),
            (Odd(g, Verdict.MONITOR, "persistence mode is off", Remedy.SETUP) for g in persistence if not g.persistent),
            "persistence mode is on",
            "no persistence mode",
        ),
        *told("gpu_mode", node, len(gpus), _mode(gpus), _modes(gpus), "no GPUs"),
    ]


def hardware_slowdown(gpu: Gpu) -> list[str]:
    return [name for bit, name in HARDWARE.items() if (gpu.reasons or 0) & bit]


def warmth(heat: Heat, limits: GpuLimits) -> str:
    """light, moderate or heavy, by where the device slows itself down; "" where it does not tell that."""
    if heat.now is None or (not heat.slowdown and heat.margin is None):
        return ""
    if not heat.slowdown:
        return "heavy" if (heat.margin or 0) <= 0 else "light"
    if heat.now >= heat.slowdown:
        return "heavy"
    return "moderate" if heat.now > heat.slowdown - limits.gpu_heat_margin else "light"


def slowdowns(gpu: Gpu) -> list[str]:
    """Why its clocks are held down: by the hardware, or by the driver for heat."""
    heat = ["software thermal slowdown"] if (gpu.reasons or 0) & SOFTWARE_HEAT else []
    return hardware_slowdown(gpu) + heat


def _clocks(gpus: list[Gpu], working: bool) -> Iterator[Odd]:
    """Beside a training a moment's slowdown is a moment's; before one, the GPU idles and has no reason for it.

    working: somebody may be using GPUs of the node now.
    """
    for gpu in gpus:
        reasons = hardware_slowdown(gpu)
        said = f"(clock reasons {gpu.reasons:#x}, SM clock {gpu.sm_clock} MHz, {gpu.heat.now} degrees)"
        if reasons:
            verdict = Verdict.MONITOR if working else Verdict.SUSPECT
            yield Odd(gpu, verdict, f"{', '.join(reasons)} {said}", Remedy.REPAIR)
        elif (gpu.reasons or 0) & SOFTWARE_HEAT:
            yield Odd(gpu, Verdict.MONITOR, f"software thermal slowdown {said}", Remedy.WATCH)


def _heat(gpus: list[Gpu], working: bool, limits: GpuLimits) -> Iterator[Odd]:
    """SUSPECT only before a launch, when nothing heats the GPU; beside a training `gpu_clocks` sees what heat does."""
    for gpu in gpus:
        heat, how = gpu.heat, warmth(gpu.heat, limits)
        if how not in ("moderate", "heavy"):
            continue
        if not heat.slowdown:
            yield Odd(gpu, Verdict.MONITOR, f"{heat.now} degrees, {heat.margin} left to a slowdown", Remedy.WATCH)
            continue
        said = f"{heat.now} degrees; it slows down at {heat.slowdown} and switches off at {heat.shutdown}"
        if how == "heavy" and not working:
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.REPAIR)
        else:
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)


def _power(gpus: list[Gpu]) -> Iterator[Odd]:
    for gpu in gpus:
        limit, default = gpu.power.limit, gpu.power.default
        siblings = [other.power.limit for other in gpus if other.name == gpu.name]
        most = max((x for x in siblings if x is not None), default=limit)
        if limit is None or most is None:
            continue
        if limit < most:
            said = f"its power limit is {limit:.0f} W, that of others in the node {most:.0f} W"
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.SETUP)
        elif default is not None and limit < default:
            said = f"its power limit is {limit:.0f} W, the default {default:.0f} W"
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.SETUP)


def _judge_leftover(node: str, gpus: list[Gpu], about: About, limits: GpuLimits, working: bool) -> list[Finding]:
    if about.tier is Tier.WATCH:
        return [not_applicable("gpu_leftover", node, "a training may be using the GPUs")]
    known = [gpu for gpu in gpus if gpu.memory_used is not None]
    fine = f"{spread((gpu.memory_used or 0) / _MIB for gpu in known)} MiB in use, no processes"
    return told("gpu_leftover", node, len(known), _leftover(known, limits, working), fine, "no memory use is told")


def _leftover(gpus: list[Gpu], limits: GpuLimits, shared: bool) -> Iterator[Odd]:
    for gpu in gpus:
        used = gpu.memory_used or 0
        whose = ", ".join(f"pid {p.pid}" for p in gpu.processes[:8]) or "none that may be seen"
        said = f"{used / _MIB:.0f} MiB in use before the launch; processes: {whose}"
        if used > limits.gpu_leftover:
            if shared:
                yield Odd(gpu, Verdict.MONITOR, f"{said}; they may be another job's, on a shared node", Remedy.WATCH)
            else:
                yield Odd(gpu, Verdict.SUSPECT, said, Remedy.AVOID)
        elif gpu.processes:
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)


def _mode(gpus: list[Gpu]) -> Iterator[Odd]:
    with_ecc = any(gpu.ecc_on for gpu in gpus)
    for gpu in gpus:
        if gpu.ecc_on is False:
            said = "ECC is off" + (", but on with others in the node" if with_ecc else "")
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.SETUP)
        elif gpu.ecc_on != gpu.ecc_on_next or gpu.mig != gpu.mig_next:
            yield Odd(gpu, Verdict.MONITOR, "a change of its ECC or MIG mode waits for a reset", Remedy.RESET_GPU)
        elif gpu.mig and not all(other.mig for other in gpus):
            yield Odd(gpu, Verdict.MONITOR, "MIG is on, but off with others in the node", Remedy.SETUP)


def _modes(gpus: list[Gpu]) -> str:
    ecc = "on" if any(gpu.ecc_on for gpu in gpus) else "not supported"
    return f"ECC {ecc}, MIG {'on' if any(gpu.mig for gpu in gpus) else 'off'}"
