"""The Grafana dashboard asks for metrics that a run has."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_metric_of_the_dashboard_is_documented() -> None:
    text = (ROOT / "contrib" / "grafana-dashboard.json").read_text()
    panels = json.loads(text)["panels"]
    asked = {re.sub("_(sum|count)$", "", name) for name in re.findall(r"transom_[a-z_]+", text)}
    documented = set(re.findall(r"transom_[a-z_]+", (ROOT / "docs" / "notifications.md").read_text()))
    assert len(panels) == 10 and len(asked) > 8
    assert asked <= documented
