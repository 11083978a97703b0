"""The run that `bench/status.py` measures is a run with something of everything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transom_cli.view.read import read_view

BENCH = Path(__file__).parents[2] / "bench"


def test_the_measured_run_has_all_that_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "status", raising=False)
    import status as bench

    view = read_view(bench.make(tmp_path, 8, 2))
    assert [one.state for one in view.node_views] == ["ok", "silent", "suspect", "slow", *["ok"] * 4]
    assert (view.memory, view.step, view.steps, view.operator) == (9360, 9360, 120_000, True)
    assert [one.gpus.answering if one.gpus else None for one in view.node_views] == [2] * 8
    assert view.reports and view.step_time == pytest.approx(60 / 26, rel=0.01)
