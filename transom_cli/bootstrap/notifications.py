"""Build a run's notifications and metrics from its settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.config.run_settings import checkpoints_of
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.notify.delivery import DeliveryLog, EndWaits, Notifier
    from transom_cli.notify.exporter import MetricsExporter
    from transom_cli.notify.messages import Target
    from transom_cli.notify.senders import Send


def notifier_for(run: RunDir, settings: Settings, ledger: DeliveryLog, waits: EndWaits | None = None) -> Notifier:
    """Return the notifier for the targets of the settings."""
    from transom_cli.notify.delivery import DeliveryWorker, EndWaits, Notifier
    from transom_cli.notify.messages import About

    about = About(run.run_id, settings.name, str(run.path))
    send, per_hour = senders_of(settings), settings.notify.per_hour
    targets = [table.target() for table in settings.notify.targets]
    workers = [DeliveryWorker(t, about, send(t), ledger, per_hour) for t in targets if t.events]
    return Notifier(workers, settings.job.cluster or "", waits or EndWaits())


def secrets_of(settings: Settings) -> Path:
    """Return the file of URLs and tokens: as set, else beside the user's own settings."""
    from transom_cli.config.sources import user_file

    return settings.notify.secrets or user_file(os.environ).parent / "secrets.toml"


def senders_of(settings: Settings) -> Callable[[Target], Send]:
    """Return what sends to a target, with the secrets and the timeout of the settings."""
    from transom_cli.notify.senders import sender

    secrets = secrets_of(settings)
    return lambda target: sender(target, secrets, settings.notify.timeout)


def meter_for(run: RunDir, settings: Settings, ledger: DeliveryLog) -> MetricsExporter | None:
    """Return what measures the run for Prometheus, or None if metrics are not requested."""
    if not settings.metrics.wanted:
        return None
    from transom_cli.notify.exporter import MetricsConfig, MetricsExporter

    metrics = settings.metrics
    about = MetricsConfig(
        run,
        settings.name,
        checkpoints_of(run, settings),
        metrics.textfile,
        metrics.port,
        metrics.address,
        metrics.every,
    )
    return MetricsExporter(about, ledger.counts)


def require_notifications(settings: Settings) -> None:
    """Check notifications and metrics before anything is submitted, so that they do not fail during the run."""
    from transom_cli.notify.checks import require_metrics, require_target

    secrets = secrets_of(settings)
    for table in settings.notify.targets:
        if table.events:
            require_target(table.target(), secrets)
    if settings.metrics.wanted:
        require_metrics(settings.metrics.textfile)
