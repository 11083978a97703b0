"""The table of all checks of a node. Judges are imported here; readers are named, and imported where they read."""

from __future__ import annotations

import dataclasses
from typing import Any

from transom_cli.health import kernel_rules
from transom_cli.health.about import About, Tier
from transom_cli.health.checks import NodeCheck
from transom_cli.health.finding import Finding
from transom_cli.health.gpu import dcgm
from transom_cli.health.gpu import judge as gpu
from transom_cli.health.gpu.judge_changes import judge_nvml_changes
from transom_cli.health.gpu.judge_count import overdue_nvml
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import NvmlReading
from transom_cli.health.history.lemons import HistoryLimits
from transom_cli.health.node import (
    clock,
    fabric,
    fabric_rules,
    facts,
    machine,
    mounts,
    mounts_rules,
    processes,
    run_dir,
    site,
    ulimits,
)
from transom_cli.health.probe.judge import CHECKS as PROBE
from transom_cli.health.probe.limits import ProbeLimits

_NODE = "transom_cli.health.node."


def _machine_changes(
    node: str, former: Any, reading: Any, seconds: float, _about: About, limits: Any
) -> tuple[Finding, ...]:
    return machine.judge_machine_changes(node, former, reading, seconds, limits)


def _fabric_changes(
    node: str, former: Any, reading: Any, seconds: float, _about: About, limits: Any
) -> tuple[Finding, ...]:
    return fabric_rules.judge_fabric_changes(node, former, reading, seconds, limits)


CHECKS: tuple[NodeCheck, ...] = (
    NodeCheck(
        "gpu", "transom_cli.health.gpu.nvml:read_nvml", gpu.judge_nvml, NvmlReading, GpuLimits,
        20.0, Tier.QUICK, gpu.FINDINGS, overdue_nvml, judge_nvml_changes,
    ),
    NodeCheck(
        "kernel", "transom_cli.health.kernel:read_kernel", kernel_rules.judge_kernel_log, kernel_rules.KernelReading,
        kernel_rules.KernelLimits, 20.0, Tier.QUICK, kernel_rules.FINDINGS, kernel_rules.overdue_kernel,
    ),
    NodeCheck(
        "dcgm", "transom_cli.health.gpu.dcgm_run:read_dcgm", dcgm.judge_dcgm, dcgm.DcgmReading, dcgm.DcgmLimits,
        900.0, Tier.DEEP, (dcgm.CHECK,), dcgm.overdue_dcgm,
    ),
    NodeCheck(
        "host", f"{_NODE}machine:read_machine", machine.judge_machine, machine.MachineReading, machine.MachineLimits,
        5.0, Tier.WATCH, machine.FINDINGS, machine.overdue, _machine_changes,
    ),
    NodeCheck(
        "fabric", f"{_NODE}fabric:read_fabric", fabric_rules.judge_fabric, fabric.FabricReading,
        fabric_rules.FabricLimits, 10.0, Tier.WATCH, fabric_rules.FINDINGS, fabric_rules.overdue, _fabric_changes,
    ),
    NodeCheck(
        "mounts", f"{_NODE}mounts:read_mounts", mounts_rules.judge_mounts, mounts.MountsReading,
        mounts_rules.MountsLimits, 15.0, Tier.WATCH, mounts_rules.FINDINGS, mounts_rules.overdue,
    ),
    NodeCheck(
        "processes", f"{_NODE}processes:read_processes", processes.judge_processes, processes.ProcessesReading,
        processes.ProcessesLimits, 10.0, Tier.QUICK, processes.FINDINGS, processes.overdue,
    ),
    NodeCheck(
        "limits", f"{_NODE}ulimits:read_ulimits", ulimits.judge_ulimits, ulimits.UlimitsReading, ulimits.UlimitsLimits,
        5.0, Tier.QUICK, ulimits.FINDINGS, ulimits.overdue,
    ),
    NodeCheck(
        "run_dir", f"{_NODE}run_dir:read_run_dir", run_dir.judge_run_dir, run_dir.RunDirReading, run_dir.RunDirLimits,
        15.0, Tier.QUICK, run_dir.FINDINGS, run_dir.overdue,
    ),
    NodeCheck(
        "facts", f"{_NODE}facts:read_facts", facts.judge_facts, facts.FactsReading, facts.FactsLimits,
        5.0, Tier.QUICK, facts.FINDINGS, facts.overdue,
    ),
    NodeCheck(
        "site", f"{_NODE}site:read_site", site.judge_site, site.SiteReading, site.SiteLimits,
        30.0, Tier.QUICK, site.FINDINGS, site.overdue_site,
    ),
    NodeCheck(
        "nhc", f"{_NODE}site:read_nhc", site.judge_nhc, site.NhcReading, site.SiteLimits,
        45.0, Tier.DEEP, site.NHC_FINDINGS, site.overdue_nhc,
    ),
)  # fmt: skip
OVERALL: tuple[str, ...] = ("answer", "alike", "clock_offset", *PROBE)  # findings that come of comparing nodes
LIMITS: tuple[type, ...] = (*dict.fromkeys(c.limits for c in CHECKS), clock.ClockLimits, ProbeLimits, HistoryLimits)


def finding_names() -> tuple[str, ...]:
    """What findings are called, those of all nodes together too. One that ends in a colon stands for many."""
    return tuple(sorted({n.rstrip(":") for c in CHECKS for n in c.findings} | set(OVERALL)))


def limit_names() -> tuple[str, ...]:
    return tuple(sorted({f.name for kind in LIMITS for f in dataclasses.fields(kind)}))


def of_tier(tier: Tier) -> tuple[NodeCheck, ...]:
    return tuple(c for c in CHECKS if tier.includes(c.tier))
