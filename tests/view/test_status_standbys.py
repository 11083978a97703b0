"""`transom status` shows how many standbys are ready, as the launcher publishes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from view_made import JOB, Made

from transom_cli.view.document import to_json
from transom_cli.view.status import status_lines

WORDS = "3 of 4 for launch 1, waiting before the call of train in train.py, line 41"
SAID = {"schema": 1, "launch": 1, "ranks": 4, "nodes": {"gpu000": 2, "gpu001": 1}, "words": WORDS}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path).began().stepped().operator().beats()


def test_line_in_text_and_counts_by_node_in_json(made: Made) -> None:
    made.run.attempt(JOB, 0).standbys.write_text(json.dumps(SAID))
    view = made.view()
    (line,) = [line for line in status_lines(view, 160) if "standbys" in line]
    assert line.split(None, 1) == ["standbys", f"ready: {WORDS}"]
    assert json.loads(to_json(view))["standbys"] == {key: SAID[key] for key in ("launch", "ranks", "nodes", "words")}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"launch": "x"}', '{"launch": 1, "ranks": 1, "nodes": [], "words": ""}']
)
def test_nothing_without_standbys_or_a_readable_file(made: Made, text: str) -> None:
    if text:
        made.run.attempt(JOB, 0).standbys.write_text(text)
    assert made.view().standbys is None
