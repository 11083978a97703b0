"""One reading of a node's GPUs as NVML reports it, the limits that it is judged by, and helpers of the judges. Pure.

None means that the device or the driver does not report the value. Units: bytes, degrees Celsius, watts, MHz. Counters
named volatile start at zero when the driver is loaded or the GPU is reset; aggregate ones cover the GPU's life.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.health.finding import WORST_FIRST, Finding, Remedy, Verdict, not_applicable
from transom_cli.plural import several

# NVML return codes (nvmlReturn_t) that concern a whole device or the driver.
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_BINDING = -1  # ours: nvidia-ml-py cannot be imported

RECOVERY_ACTION = 230  # NVML field ID; drivers from 570 on
LEFTOVER = 512 * 2**20  # bytes; NVRx waits until less than this is in use before it restarts ranks


@dataclass(frozen=True)
class GpuLimits:
    """Thresholds; users override them by name in `health.limits`. A value above its limit is reported."""

    # Corrected errors since the GPU's reset. azurehpc-health-checks: `check_gpu_ecc 20000000 10000` (DRAM, SRAM);
    # gcm: 50,000,000. The errors were corrected, so the verdict is MONITOR.
    gpu_ecc_corrected: int = 20_000_000
    gpu_sram_corrected: int = 10_000
    # Rows remapped after uncorrected errors; azurehpc-health-checks.
    gpu_rows_uncorrected: int = 512
    # Retired pages. DCGM, dcgm_gpu_hardware_limits.h: 63 as in the field diagnostic, 15 as the soft limit.
    gpu_pages: int = 63
    gpu_pages_soft: int = 15
    # NVLink errors are counted in windows of this many seconds. New errors in more than `bad` of the last `windows` are
    # too many. NVRx, NVLinkWindow: 60 s, 15 of 30.
    gpu_nvlink_window: float = 60.0
    gpu_nvlink_windows: int = 30
    gpu_nvlink_windows_bad: int = 15
    # NVLink CRC errors a second. DCGM, dcgm_gpu_hardware_limits.h: they "only matter at rates of 100+ per second".
    gpu_nvlink_crc_rate: float = 100.0
    # PCIe replays per minute. DCGM, dcgm_gpu_hardware_limits.h: 8 "is the maximum recommended by RM".
    gpu_pcie_replay_rate: float = 8.0
    # Hardware slowdown, by minutes in which it was seen: gpud calls a GPU unhealthy at 0.6 a minute over 10 minutes.
    gpu_slowdown_window: float = 60.0
    gpu_slowdown_windows: int = 10
    gpu_slowdown_windows_bad: int = 5
    # Degrees below the device's own slowdown threshold. No source.
    gpu_heat_margin: int = 5
    # Percent of the last sample in which a kernel ran; from here on the GPU counts as loaded. No source.
    gpu_busy: int = 50
    # Bytes in use before a launch. NVRx; gcm has 15 MiB, by a count that includes what the driver keeps.
    gpu_leftover: int = LEFTOVER


@dataclass(frozen=True)
class Ecc:
    """Memory errors in all locations: nvmlDeviceGetTotalEccErrors."""

    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    corrected_volatile: int | None = None
    corrected_aggregate: int | None = None


@dataclass(frozen=True)
class Sram:
    """nvmlDeviceGetSramEccErrorStatus. uncorrected: parity and SEC-DED. exceeded: NVIDIA's threshold for a repair."""

    uncorrected_volatile: int
    uncorrected_aggregate: int
    corrected_volatile: int
    exceeded: bool


@dataclass(frozen=True)
class Rows:
    """nvmlDeviceGetRemappedRows: rows remapped after corrected and uncorrected errors, over the GPU's life."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class Pages:
    """Pages retired over the GPU's life, on GPUs that cannot remap rows (before Ampere)."""

    single_bit: int
    double_bit: int
    pending: bool


@dataclass(frozen=True)
class Link:
    """One NVLink. errors: the counters of `Gpu.link_counters` that are not 0, since the driver was loaded."""

    number: int
    up: bool
    errors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Fabric:
    """nvmlDeviceGetGpuFabricInfoV.

    state: 1 not started, 2 in progress, 3 completed. status: an NVML return code. health: bits of
    NVML_GPU_FABRIC_HEALTH_MASK. cluster, clique: the NVLink domain that the GPU has joined.
    """

    state: int
    status: int
    health: int
    cluster: str = ""
    clique: int = 0


@dataclass(frozen=True)
class Pcie:
    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replays: int | None = None


@dataclass(frozen=True)
class Heat:
    """slowdown, shutdown: temperatures at which the device slows down and switches off. margin: degrees below the
    nearest slowdown, which newer devices report instead of thresholds."""

    now: int | None = None
    slowdown: int | None = None
    shutdown: int | None = None
    margin: int | None = None


@dataclass(frozen=True)
class Power:
    """limit: the limit in force. default: the factory limit."""

    usage: float | None = None
    limit: float | None = None
    default: float | None = None


@dataclass(frozen=True)
class Process:
    pid: int
    used: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One device, by NVML's index.

    trouble, trouble_code: NVML's message and return code if it refused to access the device; later fields are unknown
    then. unread: calls that failed in an unusual way, with NVML's message. recovery: the recovery action that the
    driver requests (field 230). switched: its NVLinks lead to switches, not to bridges between pairs of cards.
    link_counters: the kinds of errors that the links count. reasons: why clocks are not higher, as bits. busy: percent
    of the last sample in which a kernel ran. processes: those that this user may see.
    """

    index: int
    uuid: str = ""
    serial: str = ""
    bus_id: str = ""
    name: str = ""
    vbios: str = ""
    trouble: str = ""
    trouble_code: int = 0
    unread: tuple[str, ...] = ()
    recovery: int | None = None
    ecc_on: bool | None = None
    ecc_on_next: bool | None = None
    ecc: Ecc = Ecc()
    sram: Sram | None = None
    rows: Rows | None = None
    pages: Pages | None = None
    links: tuple[Link, ...] = ()
    link_counters: tuple[str, ...] = ()
    switched: bool | None = None
    fabric: Fabric | None = None
    pcie: Pcie = Pcie()
    reasons: int | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    busy: int | None = None
    heat: Heat = Heat()
    power: Power = Power()
    memory_used: int | None = None
    memory_total: int | None = None
    processes: tuple[Process, ...] = ()
    persistent: bool | None = None
    mig: bool | None = None
    mig_next: bool | None = None

    @property
    def device(self) -> str:
        """The best known name, for a finding."""
        return self.uuid or self.bus_id or f"GPU {self.index}"

    @property
    def readable(self) -> bool:
        return not self.trouble_code


@dataclass(frozen=True)
class NvmlReading:
    """wall, mono: when the reading began, in seconds.

    absent, absent_code: why NVML is not available, as its message and return code; "" and 0 if it is. cuda: such as
    "12.8". barred: GPUs of the node that this process may not use (another job's, on a shared node). granted: the GPUs
    that Slurm gave this process here; None if Slurm does not say. foreign: no device in the machine is NVIDIA's, so the
    job's GPUs are from another vendor.
    """

    wall: float = 0.0
    mono: float = 0.0
    absent: str = ""
    absent_code: int = 0
    driver: str = ""
    cuda: str = ""
    nvml: str = ""
    gpus: tuple[Gpu, ...] = ()
    barred: int = 0
    granted: int | None = None
    foreign: bool = False


def gpu_versions(reading: NvmlReading) -> tuple[tuple[str, str], ...]:
    """Return what must be the same on all nodes of a job, by name; () without NVML."""
    if reading.absent:
        return ()
    names = sorted(gpu.name for gpu in reading.gpus if gpu.name)
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    bios = ", ".join(sorted({gpu.vbios for gpu in reading.gpus if gpu.vbios}))
    found = (("driver", reading.driver), ("cuda", reading.cuda), ("gpus", kinds), ("vbios", bios))
    return tuple((name, value) for name, value in found if value)


@dataclass(frozen=True)
class Anomaly:
    """One GPU that does not pass a check."""

    gpu: Gpu
    verdict: Verdict
    text: str
    remedy: Remedy


def gpu_finding(check: str, node: str, anomaly: Anomaly) -> Finding:
    gpu = anomaly.gpu
    place = f" ({gpu.bus_id})" if gpu.bus_id else ""
    text = f"GPU {gpu.index}{place}: {anomaly.text}"
    return Finding(check, anomaly.verdict, node, text, anomaly.remedy, gpu.device, gpu.serial)


def gpu_findings(
    check: str, node: str, measured: int, anomalies: Iterable[Anomaly], healthy: str, missing: str
) -> list[Finding]:
    """Return one finding per anomaly, worst first, or one PASS.

    Args:
        measured: how many GPUs report the value. With none the check does not apply.
        healthy: text of the PASS.
        missing: text if no GPU reports the value.
    """
    found = [gpu_finding(check, node, anomaly) for anomaly in anomalies]
    if found:
        return worst_first(found)
    if not measured:
        return [not_applicable(check, node, missing)]
    return [Finding(check, Verdict.PASS, node, f"{several(measured, 'GPU')}: {healthy}")]


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda f: WORST_FIRST.index(f.verdict))


def worse(a: Finding, b: Finding) -> Finding:
    return min(a, b, key=lambda f: WORST_FIRST.index(f.verdict))


def spread(values: Iterable[int | float | None]) -> str:
    """Return "3" or "31 to 44"."""
    known = sorted({value for value in values if value is not None})
    if not known:
        return "unknown"
    return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (known[0], known[-1])))


def growth(old: int | None, new: int | None) -> int:
    """Return by how much a counter has grown; 0 if it was reset or is not reported."""
    return max(0, new - old) if old is not None and new is not None else 0
