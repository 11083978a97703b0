"""`transom status` shows which ranks are behind in a communicator, as the agents keep it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from view_made import JOB, NOW, Made

from transom_cli.view.document import to_json
from transom_cli.view.status import status_lines

WORDS = "rank 5 is behind in communicator 0x9c1b (32 ranks): 1,204 AllReduce operations, others 1,205"


def told(made: Made, node: str, *words: str, ago: float = 10.0, launch: int = 0, seconds: float = 40.0) -> Made:
    path = made.run.attempt(JOB, 0).nccl(node)
    found = [{"words": one, "seconds": seconds} for one in words]
    path.write_text(json.dumps({"schema": 1, "launch": launch, "behind": found}))
    os.utime(path, (NOW - ago, NOW - ago))
    return made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path).began().stepped().operator().beats()


def test_line_in_text_and_json(made: Made) -> None:
    view = told(made, "gpu000", WORDS).view()
    (line,) = [line for line in status_lines(view, 160) if "NCCL" in line]
    assert line.split(None, 1) == ["NCCL", f"{WORDS}, for 40 s"]
    assert json.loads(to_json(view))["nccl"] == [f"{WORDS}, for 40 s"]


def test_nothing_is_shown_while_nobody_is_behind(made: Made) -> None:
    view = made.view()
    assert view.nccl == () and told(made, "gpu000").view().nccl == ()
    assert not any("NCCL" in line for line in status_lines(view, 160))


@pytest.mark.parametrize("ago", [5.0, 15.0])
def test_newer_answer_of_two_nodes_counts(made: Made, ago: float) -> None:
    told(told(made, "gpu000", WORDS, ago=10.0), "gpu003", ago=ago)
    assert bool(made.view().nccl) == (ago > 10.0)


@pytest.mark.parametrize(("launch", "ago", "seconds"), [(1, 10.0, 40.0), (0, 300.0, 40.0), (0, 10.0, float("nan"))])
def test_another_launch_an_old_answer_and_no_number(made: Made, launch: int, ago: float, seconds: float) -> None:
    assert told(made, "gpu000", WORDS, launch=launch, ago=ago, seconds=seconds).view().nccl == ()


def test_damaged_file_and_control_characters(made: Made) -> None:
    assert "\x1b" not in str(told(made, "gpu000", "rank \x1b[7m5").view().nccl[0])
    path = made.run.attempt(JOB, 0).nccl("gpu000")
    for text in ("", "[]", '{"launch": 0, "behind": 3}', '{"launch": 0, "behind": [3, {"words": 4}]}'):
        path.write_text(text)
        assert made.view().nccl == ()
