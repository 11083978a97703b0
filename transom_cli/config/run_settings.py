"""The settings of a run, read from its run.toml, in the form that operator and launcher use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.core.operator.state import Policy
from transom_cli.core.policy import Rule
from transom_cli.core.stall_state import StallLimits
from transom_cli.errors import UsageError
from transom_cli.health.check import HealthOptions
from transom_cli.layout import RunDir, resuming

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


def read_settings(run: RunDir) -> Settings:
    """Return the settings that were frozen at submission.

    Raises:
        UsageError: run.toml contains settings that this transom does not know, or invalid ones.
    """
    from transom_cli.config.load import thaw

    try:
        return thaw(read_run_file(run, run.settings), str(run.settings))
    except UsageError as error:
        hint = f"use the transom that created the run, or restore {run.settings} if someone edited it"
        raise UsageError(f"The settings of the run `{run.run_id}` cannot be read", error.why, hint) from error


def read_run_file(run: RunDir, path: Path) -> str:
    """Read one of the files without which a run cannot be operated. A user's script may have any encoding."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        from transom_cli.submit.rundir import path_error

        instead = f"restore it from a copy; or start a new run: {resuming(run)}\nif its job runs: {cancel_by_hand(run)}"
        raise path_error(error, path, doing="read", instead=instead) from error


def cancel_by_hand(run: RunDir) -> str:
    return f"cancel the run's job yourself (`scancel`; `transom status {run.run_id}` shows its ID)"


def policy_of(settings: Settings) -> Policy:
    return Policy(
        max_without_progress=settings.restart.max_without_progress,
        backoff=settings.restart.backoff,
        release_held=settings.restart.release_held,
        drain=settings.isolate.drain,
        cap_nodes=settings.isolate.max_nodes,
        cap_fraction=settings.isolate.max_fraction,
        cap_window=settings.isolate.window,
        cap_cluster=settings.isolate.max_cluster_nodes,
        expiry=settings.isolate.expiry,
        expiry_by_cost=settings.isolate.expiry_by_cost,
        rules=rules_of(settings),
        observe=settings.run.mode == "observe",
    )


def rules_of(settings: Settings) -> tuple[Rule, ...]:
    """Return the policy's rules, the same for operator and launcher."""
    return tuple(table.rule() for table in settings.policy.rules)


def health_options(settings: Settings) -> HealthOptions:
    health = settings.health
    return HealthOptions(
        **health.model_dump(exclude={"python", "limits", "site_checks"}),
        python=(health.python or settings.launch.python,),
        limits=tuple(sorted(health.limits.items())),
        site_checks=str(health.site_checks or ""),
    )


def checkpoints_of(run: RunDir, settings: Settings) -> Path:
    return settings.checkpoint.directory or run.checkpoints


def stall_limits(settings: Settings) -> StallLimits:
    return StallLimits(**settings.detect.model_dump())
