"""A month with a thousand incidents, made as bench/report.py makes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transom_cli.layout import RunDir

BENCH = Path(__file__).parents[3] / "bench"


@pytest.mark.long
def test_what_is_drawn_and_told_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Callable[[RunDir], str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "report", raising=False)
    import report as bench

    text = reported(bench.make(tmp_path, 30.0, 1000, 16, now=1_795_331_000.0))
    assert len(text) < 500_000
    assert text.count("<details") == 40
    assert text.count("<rect") < 2000 and text.count('class="tick') < 1300
    assert "are drawn as 200 columns" in text
    assert "shows the other 1,010" in text and "800 earlier incidents not listed" in text
    assert "901 cheaper causes not shown" in text
