"""What a run was asked for, as the parts that follow it take it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.core.policy import Rule
from transom_cli.core.quiet_shapes import QuietLimits
from transom_cli.core.state import Policy
from transom_cli.health.options import HealthOptions
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


def read_settings(run: RunDir) -> Settings:
    """What was asked for, as it was frozen at submission."""
    from transom_cli.config.load import thaw

    return thaw(read_kept(run, run.settings), str(run.settings))


def read_kept(run: RunDir, path: Path) -> str:
    """One of the files without which a run cannot be operated. Bytes of a user's script may be of any encoding."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        from transom_cli.submit.rundir import explain

        instead = f"end the run's job by hand (`scancel`; `transom status {run.run_id}` names it)"
        raise explain(error, path, doing="read", instead=instead) from error


def policy_of(settings: Settings) -> Policy:
    return Policy(
        max_without_progress=settings.restart.max_without_progress,
        backoff=settings.restart.backoff,
        release_held=settings.restart.release_held,
        drain=settings.isolate.drain,
        cap_nodes=settings.isolate.max_nodes,
        cap_fraction=settings.isolate.max_fraction,
        cap_window=settings.isolate.window,
        expiry=settings.isolate.expiry,
        rules=rules_of(settings),
    )


def rules_of(settings: Settings) -> tuple[Rule, ...]:
    """The policy's table, the same for operator and launcher."""
    return tuple(table.rule() for table in settings.policy.rules)


def health_options(settings: Settings) -> HealthOptions:
    from transom_cli.submit.render import interpreter

    asked = settings.health
    return HealthOptions(
        preflight=asked.preflight,
        budget=asked.budget,
        deep=asked.deep,
        deep_budget=asked.deep_budget,
        probe=asked.probe,
        python=interpreter(asked.python or settings.launch.python),
        watch=asked.watch,
        every=asked.every,
        off=asked.off,
        limits=tuple(sorted(asked.limits.items())),
        site_checks=str(asked.site_checks or ""),
    )


def checkpoints_of(run: RunDir, settings: Settings) -> Path:
    return settings.checkpoint.directory or run.checkpoints


def quiet_limits(settings: Settings) -> QuietLimits:
    return QuietLimits(**settings.detect.model_dump())


def runs_root(explicit: Path | None = None) -> Path:
    """Where run directories live: as asked, else as the settings' layers say."""
    from transom_cli.config import root

    return root.runs_root(explicit, os.environ)
