"""From a run's settings to a scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transom_cli.config.run_settings import health_options, policy_of, rules_of, stall_limits
from transom_cli.errors import UsageError
from transom_cli.simulate.model import Costs, Hazard, Scenario, Trace
from transom_cli.slurm.port import slurm_seconds
from transom_cli.supervise.launcher.plan import launcher_policy

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


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
    """Change one assumption, such as `costs.start` or `hazard.switch_per_day`."""
    part, _, name = key.partition(".")
    values = getattr(scenario, part) if part in ("costs", "hazard") else None
    now = getattr(values, name, None)
    if not isinstance(now, bool | int | float | str):
        raise UsageError(f"`{key}` is not an assumption", "docs/simulate.md lists them", "for example costs.start=30")
    try:
        found = value in ("true", "1") if isinstance(now, bool) else type(now)(value)
    except ValueError as error:
        raise UsageError(f"`{key}={value}` is not a number") from error
    return replace(scenario, **{part: replace(values, **{name: found})})  # type: ignore[type-var, arg-type]
