"""`transom explain` tells a failure that repeats once."""

from __future__ import annotations

from pathlib import Path

import pytest
from view_scenes import KEY_ERROR, SCENES

from transom_cli.cli.explain import _incidents, _read
from transom_cli.layout import RunDir


def test_identical_incidents_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path / SCENES["stopped_crash_loop"](tmp_path).run_id)
    book = _read(run)
    _incidents(run, book, None, 200, json_=False, verbose=True, full=False)
    brief = capsys.readouterr().out
    assert "i1 to i2: the same failure, not shown (--full shows it)" in brief
    _incidents(run, book, None, 200, json_=False, verbose=True, full=True)
    whole = capsys.readouterr().out
    heads = [one for one in whole.splitlines() if one.startswith(("i1", "i2", "i3"))]
    assert len(heads) == 3 and whole.count(KEY_ERROR) > brief.count(KEY_ERROR) > 0
