"""docs/settings.md says what the model says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from transom_cli.config.describe import settings_of
from transom_cli.config.model import Settings
from transom_cli.health.registry import finding_names, limit_names

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from reference_settings import settings_markdown

HEALTH = Path(__file__).resolve().parents[2] / "docs" / "health.md"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    message = "rewrite it: make docs-reference"
    assert PAGE.read_text() == settings_markdown(), message


def test_every_setting_is_described_in_one_line() -> None:
    settings = list(settings_of())
    assert len(settings) > 40
    for setting in settings:
        assert 10 < len(setting.description) < 110 and "\n" not in setting.description, setting.key


def test_defaults_in_the_table_are_those_of_the_model() -> None:
    shown = {setting.key: setting for setting in settings_of()}
    defaults = Settings()
    assert shown["detect.factor"].default == str(defaults.detect.factor) and shown["detect.factor"].kind == "float"
    assert shown["job.partition"].default == "" and shown["job.partition"].optional
    assert shown["launch.kind"].choices == ("srun", "torchrun")
    assert shown["launch.container.mounts"].variable == "TRANSOM_LAUNCH__CONTAINER__MOUNTS"
    assert shown["auto_beat"].variable == "TRANSOM_AUTO_BEAT"


def test_health_page_names_every_check_and_threshold() -> None:
    found = set(re.findall(r"`([a-z_]+)(?::<file>)?`", HEALTH.read_text()))
    assert set(finding_names()) - found == set(), "docs/health.md lacks checks"
    assert set(limit_names()) - found == set(), "docs/health.md lacks thresholds"
