"""Whom a run tells, and what measures it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.layout import RunDir
from transom_cli.wiring.settings import checkpoints_of

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.telling.ledger import Ledger
    from transom_cli.telling.meter import Meter
    from transom_cli.telling.notifier import Notifier
    from transom_cli.telling.senders import Send
    from transom_cli.telling.target import Target


def notifier_for(run: RunDir, settings: Settings, ledger: Ledger) -> Notifier:
    """What tells the targets of the settings."""
    from transom_cli.telling.courier import Courier
    from transom_cli.telling.notifier import Notifier
    from transom_cli.telling.words import About

    about, send, per_hour = (
        About(run.run_id, settings.name, str(run.path)),
        senders_of(settings),
        settings.notify.per_hour,
    )
    targets = [table.target() for table in settings.notify.targets]
    couriers = [Courier(t, about, send(t), ledger, per_hour) for t in targets if t.events]
    return Notifier(couriers, settings.job.cluster or "")


def secrets_of(settings: Settings) -> Path:
    """The file of URLs and tokens: as set, else beside the user's own settings."""
    from transom_cli.config.load import user_file

    return settings.notify.secrets or user_file(os.environ).parent / "secrets.toml"


def senders_of(settings: Settings) -> Callable[[Target], Send]:
    """How a target is told, with the secrets and within the time that the settings name."""
    from transom_cli.telling.senders import sender

    secrets = secrets_of(settings)
    return lambda target: sender(target, secrets, settings.notify.timeout)


def meter_for(run: RunDir, settings: Settings, ledger: Ledger) -> Meter | None:
    """What measures the run for Prometheus; None where nobody asked for it."""
    if not settings.metrics.wanted:
        return None
    from transom_cli.telling.meter import Gauging, Meter

    asked = settings.metrics
    about = Gauging(
        run, settings.name, checkpoints_of(run, settings), asked.textfile, asked.port, asked.address, asked.every
    )
    return Meter(about, ledger.counts)


def require_telling(settings: Settings) -> None:
    """Refuse, before anything is submitted, notifications and metrics that would only fail in the night."""
    from transom_cli.telling.ready import require_metrics, require_target

    secrets = secrets_of(settings)
    for table in settings.notify.targets:
        if table.events:
            require_target(table.target(), secrets)
    if settings.metrics.wanted:
        require_metrics(settings.metrics.textfile)
