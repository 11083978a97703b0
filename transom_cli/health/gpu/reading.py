"""What one look at a node's GPUs found, as NVML tells it. Pure.

None: the device or the driver gives no such value. Sizes are bytes, temperatures degrees Celsius, power watts, clocks
MHz. Counters named volatile count since the driver was loaded or the GPU was reset, aggregate ones over its life.
"""

from __future__ import annotations

from dataclasses import dataclass

# NVML's return codes that say something of a device or of the whole driver (nvmlReturn_t).
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_BINDING = -1  # ours: nvidia-ml-py cannot be imported


@dataclass(frozen=True)
class Ecc:
    """Memory errors of all locations together: nvmlDeviceGetTotalEccErrors."""

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
    """One NVLink. errors: those of `Gpu.link_counters` that are not 0, since the driver was loaded."""

    number: int
    up: bool
    errors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Fabric:
    """nvmlDeviceGetGpuFabricInfoV: state 1 not started, 2 in progress, 3 completed; status: an NVML return code.

    health: bits of NVML_GPU_FABRIC_HEALTH_MASK. cluster, clique: which NVLink domain the GPU has joined.
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
    """slowdown, shutdown: where the device slows itself down, and where it switches itself off. margin: what is left to
    the nearest slowdown, as newer devices tell it in place of the thresholds.
    """

    now: int | None = None
    slowdown: int | None = None
    shutdown: int | None = None
    margin: int | None = None


@dataclass(frozen=True)
class Power:
    """limit: what is enforced now. default: what the device came with."""

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

    trouble, trouble_code: NVML's words and return code when it would not talk to the device at all; nothing that was
    not read before is known then. unread: calls that failed in an unusual way, with NVML's words. recovery: what the
    driver itself asks for (field 230). switched: its NVLinks lead to switches, not to bridges between pairs of cards.
    link_counters: which errors the links count. reasons: why the clocks are not higher, as bits. busy: percent of the
    last sample in which a kernel ran. processes: those that this user may see.
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
        """The best name that is known of it, for a finding."""
        return self.uuid or self.bus_id or f"GPU {self.index}"

    @property
    def readable(self) -> bool:
        return not self.trouble_code


@dataclass(frozen=True)
class NvmlReading:
    """wall, mono: seconds, when it was begun.

    absent, absent_code: why there is no NVML to ask, in its words and as its return code; "" and 0 where there is.
    cuda: as "12.8". barred: GPUs of the node that this process may not use (another job's, on a shared node).
    granted: GPUs that Slurm says this process has here; None: it does not say. foreign: no device in the machine is
    NVIDIA's, so that the GPUs that the job asked for are another make's.
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
    """What must be the same on all nodes of a job, by name; nothing where there is no NVML."""
    if reading.absent:
        return ()
    names = sorted(gpu.name for gpu in reading.gpus if gpu.name)
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    bios = ", ".join(sorted({gpu.vbios for gpu in reading.gpus if gpu.vbios}))
    found = (("driver", reading.driver), ("cuda", reading.cuda), ("gpus", kinds), ("vbios", bios))
    return tuple((name, value) for name, value in found if value)
