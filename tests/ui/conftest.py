"""Runs that a real Slurm has run, as their journals lie in `recorded/`, in run directories of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import new_run
from transom_cli.wiring import Plan

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], RunDir]:
    def put(name: str) -> RunDir:
        settings = load(site=None, user=Path("/nonexistent"))
        made = new_run(tmp_path / "runs", name, datetime(2026, 3, 4, tzinfo=timezone.utc), settings, "#!/bin/sh\n")
        Plan(chdir="/").save(made)
        shutil.copytree(RECORDED / name, made.path, dirs_exist_ok=True)
        return made

    return put
