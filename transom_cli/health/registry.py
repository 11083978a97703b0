"""The list of all checks of a node. To add one, write its module in `checks/` and add its `CHECK` here."""

import dataclasses

from transom_cli.health.check import Check, Tier
from transom_cli.health.checks import clock, fabric, facts, host, kernel, mounts, processes, run_dir, site, ulimits
from transom_cli.health.gpu import check as gpu
from transom_cli.health.gpu import dcgm
from transom_cli.health.history import criteria
from transom_cli.health.history.nodes import HistoryLimits
from transom_cli.health.probe.judge import CHECKS as PROBE
from transom_cli.health.probe.plan import ProbeLimits

CHECKS: tuple[Check, ...] = (
    gpu.CHECK,
    kernel.CHECK,
    dcgm.CHECK,
    host.CHECK,
    fabric.CHECK,
    mounts.CHECK,
    processes.CHECK,
    ulimits.CHECK,
    run_dir.CHECK,
    facts.CHECK,
    site.CHECK,
    site.NHC_CHECK,
)
OVERALL: tuple[str, ...] = ("answer", "alike", "clock_offset", *PROBE, criteria.CHECK)
"""Findings that come from comparing nodes."""
LIMITS: tuple[type, ...] = (*dict.fromkeys(c.limits for c in CHECKS), clock.ClockLimits, ProbeLimits, HistoryLimits)


def finding_names() -> tuple[str, ...]:
    """Return the names of all findings. For a family such as "mount:/path", return "mount"."""
    return tuple(sorted({n.rstrip(":") for c in CHECKS for n in c.findings} | set(OVERALL)))


def limit_names() -> tuple[str, ...]:
    """Return the names that `health.limits` may override."""
    return tuple(sorted({f.name for kind in LIMITS for f in dataclasses.fields(kind)}))


def of_tier(tier: Tier) -> tuple[Check, ...]:
    """Return the checks that a tier includes, cheaper tiers included."""
    return tuple(c for c in CHECKS if tier.includes(c.tier))
