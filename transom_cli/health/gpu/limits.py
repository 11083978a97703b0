"""From where on a value of a GPU is odd. Pure; each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

# NVRx waits until less than this is in use before it starts ranks again.
LEFTOVER = 512 * 2**20


@dataclass(frozen=True)
class GpuLimits:
    """What is more than a limit is odd. The names are those of the settings `health.limits`."""

    # Corrected errors since the GPU's reset. azurehpc-health-checks: `check_gpu_ecc 20000000 10000` (DRAM, SRAM);
    # gcm: 50,000,000. They were corrected: worth watching, no more.
    gpu_ecc_corrected: int = 20_000_000
    gpu_sram_corrected: int = 10_000
    # Rows remapped after uncorrected errors; azurehpc-health-checks.
    gpu_rows_uncorrected: int = 512
    # Retired pages. DCGM, dcgm_gpu_hardware_limits.h: 63 as the field diagnostic has it, 15 as the soft limit.
    gpu_pages: int = 63
    gpu_pages_soft: int = 15
    # NVLink errors count in windows of so many seconds; new ones in more than `bad` of the last `windows` are too many.
    # NVRx, NVLinkWindow: 60 s, 15 of 30.
    gpu_nvlink_window: float = 60.0
    gpu_nvlink_windows: int = 30
    gpu_nvlink_windows_bad: int = 15
    # NVLink CRC errors a second. DCGM, dcgm_gpu_hardware_limits.h: they "only matter at rates of 100+ per second".
    gpu_nvlink_crc_rate: float = 100.0
    # PCIe replays a minute. DCGM, dcgm_gpu_hardware_limits.h: 8 "is the maximum recommended by RM".
    gpu_pcie_replay_rate: float = 8.0
    # Slowdown by the hardware, seen in minutes: gpud calls a GPU unhealthy at 0.6 a minute over 10 minutes.
    gpu_slowdown_window: float = 60.0
    gpu_slowdown_windows: int = 10
    gpu_slowdown_windows_bad: int = 5
    # Degrees below the device's own slowdown threshold. No source.
    gpu_heat_margin: int = 5
    # Percent of the last sample in which a kernel ran, from which on the GPU counts as loaded. No source.
    gpu_busy: int = 50
    # Bytes in use before a launch. NVRx; gcm has 15 MiB, by a count that includes what the driver keeps.
    gpu_leftover: int = LEFTOVER
