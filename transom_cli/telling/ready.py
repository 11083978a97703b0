"""Whether a target could be told at all, and numbers be shown: looked at before a run is submitted."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from transom_cli.errors import UsageError
from transom_cli.telling.secretfile import read_secret
from transom_cli.telling.target import COMMAND, Target


def require_target(target: Target, secrets: Path) -> None:
    """TransomError where the target's secret cannot be used, or its program is not there. Nothing is sent."""
    if target.posts:
        read_secret(secrets, target.name)
        return
    program = (target.argv if target.kind == COMMAND else target.program)[0]
    if shutil.which(program) is None:
        raise UsageError(
            f"the notification target `{target.name}` cannot be told",
            f"there is no program `{program}` here that may be run",
            "give its absolute path: `argv` of a command, `program` of mail (docs/notifications.md)",
        )


def require_metrics(textfile: Path | None) -> None:
    """UsageError where the library is not installed, or no file can be written there."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(
            "metrics are asked for, and prometheus-client is not installed",
            "metrics.textfile or metrics.port is set",
            "pip install 'transom-cli[metrics]', or leave the two unset",
        )
    if textfile is not None and not (textfile.is_dir() and os.access(textfile, os.W_OK | os.X_OK)):
        raise UsageError(
            "metrics cannot be written",
            f"metrics.textfile: {textfile} is no folder that you may write to",
            "name a folder that node_exporter reads (its --collector.textfile.directory), or leave it unset",
        )
