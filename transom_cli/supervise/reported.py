"""What the launcher finds odd about the training, as it stands in reports.json: read without the detectors."""

from __future__ import annotations

import json
from typing import Any

from transom_cli.layout import AttemptDir

SCHEMA = 1  # of the file that `supervise.launcher.anomalies` writes


def read_reports(attempt: AttemptDir) -> dict[str, Any]:
    """An empty one where it has said nothing, or nothing that can be read."""
    try:
        data = json.loads(attempt.reports.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}
