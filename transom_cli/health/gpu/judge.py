"""What one look at a node's GPUs says of the node. Pure."""

from __future__ import annotations

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, not_applicable
from transom_cli.health.gpu.judge_count import judge_absent, judge_count
from transom_cli.health.gpu.judge_links import judge_links
from transom_cli.health.gpu.judge_memory import judge_memory
from transom_cli.health.gpu.judge_state import judge_state
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import NvmlReading

FINDINGS = (
    "gpu_count",
    "gpu_lost",
    "gpu_recovery",
    "gpu_ecc",
    "gpu_ecc_corrected",
    "gpu_sram",
    "gpu_rows",
    "gpu_pages",
    "gpu_nvlink",
    "gpu_nvlink_errors",
    "gpu_fabric",
    "gpu_pcie",
    "gpu_clocks",
    "gpu_heat",
    "gpu_power",
    "gpu_leftover",
    "gpu_persistence",
    "gpu_mode",
)


def judge_nvml(node: str, reading: NvmlReading, about: About, limits: GpuLimits) -> tuple[Finding, ...]:
    """For each of FINDINGS one PASS, or a finding for each GPU that does not pass."""
    if reading.absent:
        others = (not_applicable(check, node, "NVML cannot be asked") for check in FINDINGS[1:])
        return (judge_absent(node, reading, about), *others)
    return (
        *judge_count(node, reading, about),
        *judge_memory(node, reading, limits),
        *judge_links(node, reading, limits),
        *judge_state(node, reading, about, limits),
    )
