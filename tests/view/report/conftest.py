from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report_made import make
from view_made import NOW

from transom_cli.layout import RunDir
from transom_cli.view.read_history import read_report
from transom_cli.view.report.page import page
from transom_cli.view.report.sections import document


@pytest.fixture(autouse=True)
def at_now(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By the clock of the composed runs, and in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr("time.time", lambda: NOW)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[str], RunDir]:
    return lambda name: make(name, tmp_path)


@pytest.fixture
def reported() -> Callable[[RunDir], str]:
    return lambda run: page(document(read_report(run)))
