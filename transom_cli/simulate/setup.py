"""From a run's settings to a scenario."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from transom_cli.config.run_settings import health_options, policy_of, rules_of, stall_limits
from transom_cli.errors import UsageError
from transom_cli.simulate.model import Costs, Hazard, Scenario, Trace
from transom_cli.slurm.port import slurm_seconds
from transom_cli.supervise.launcher.plan import launcher_policy

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

ASSUMED = ("costs", "hazard", "site", "fault")  # what `assume` changes


def with_settings(scenario: Scenario, settings: Settings) -> Scenario:
    """Let the run's own policy decide, with its limits."""
    restart, limit = settings.restart, slurm_seconds(settings.job.time) or 0
    return replace(
        scenario,
        limit=float(limit),
        warn=float(settings.job.warn_before),
        limits=stall_limits(settings),
        operator=policy_of(settings),
        launcher=launcher_policy(
            restart.relaunches, restart.max_without_progress, health_options(settings), rules_of(settings)
        ),
    )


def scenario_of(settings: Settings, nodes: int, days: float, failures: Trace | Hazard, costs: Costs) -> Scenario:
    given = {"trace": failures} if isinstance(failures, Trace) else {"hazard": failures}
    return with_settings(Scenario(nodes, days, costs=costs, **given), settings)  # type: ignore[arg-type]


def assume(scenario: Scenario, key: str, value: str) -> Scenario:
    """Change one assumption, such as `costs.start`, `hazard.switch_per_day`, or the share of a fault: `fault.slow`."""
    part, _, name = key.partition(".")
    faults = scenario.hazard.faults
    values = getattr(scenario, part, None) if part in ASSUMED else None
    now = getattr(values, name, None)
    if part in ("hazard", "fault") and scenario.trace is not None:
        raise UsageError(
            f"`{key}` changes nothing", "the failures are those of a recorded trace", "give --failures RATE"
        )
    if part == "fault":
        now = next((float(fault.share) for fault in faults if fault.name == name), None)
    if not isinstance(now, bool | int | float | str):
        raise UsageError(f"`{key}` is not an assumption", "docs/simulate.md lists them", "for example costs.start=30")
    try:
        found = value in ("true", "1") if isinstance(now, bool) else type(now)(value)
    except ValueError as error:
        raise UsageError(f"`{key}={value}` is not a number") from error
    if not isinstance(found, str) and not 0 <= found < inf:
        raise UsageError(f"`{key}={value}` is not possible", "it must not be negative")
    if part == "fault":
        faults = tuple(replace(fault, share=float(found)) if fault.name == name else fault for fault in faults)
        return replace(scenario, hazard=replace(scenario.hazard, faults=faults))
    return replace(scenario, **{part: replace(values, **{name: found})})  # type: ignore[type-var, arg-type]
