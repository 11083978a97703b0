"""The registry of checks: a check lives in one module, which the registry lists."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from transom_cli.health import registry
from transom_cli.health.check import About, Check, NoLimits
from transom_cli.health.registry import CHECKS

CHECKS_DIR = Path(registry.__file__).parent / "checks"
NOT_A_CHECK = {"__init__", "clock"}  # clock: read by `host`, and compared over all nodes


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_reader_judge_and_messages_of_a_check_are_side_by_side(check: Check) -> None:
    module, _, function = check.reader.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    if check.name == "gpu":  # one NVML reading, judged by subject in the modules of `health.gpu`
        assert {part.__module__.rpartition(".")[0] for part in (check.judge, check.limits)} == {
            module.rpartition(".")[0]
        }
        return
    parts = {check.judge, check.reading, check.limits, check.overdue, check.changes} - {NoLimits, None}
    assert {part.__module__ for part in parts if not isinstance(part, str)} == {module}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_readings_and_limits_are_frozen_and_an_overdue_reading_is_a_finding(check: Check) -> None:
    for kind in (check.reading, check.limits):
        assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert check.late("n1", 5.0, About()).node == "n1"


@pytest.mark.parametrize("path", sorted(CHECKS_DIR.glob("*.py")), ids=lambda path: path.stem)
def test_every_module_of_checks_is_listed(path: Path) -> None:
    if path.stem in NOT_A_CHECK:
        return
    module = importlib.import_module(f"transom_cli.health.checks.{path.stem}")
    assert module.CHECK in CHECKS
