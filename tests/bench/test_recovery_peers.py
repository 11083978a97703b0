"""The pure parts of bench/recovery_peers.py: what the ranks' lines tell, the lines of code, the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from recovery_peers import CASES, Line, judged, lines_for, span, table


def line(at: float, step: int, life: float, world: int = 3, rank: int = 0) -> Line:
    return Line(at, step, rank, world, life, 1, 0.0, 0.0)


BEFORE = [line(9.0, 24, 1.0), line(9.5, 25, 1.0, rank=1)]


def test_repeated_steps_are_lost_and_the_first_new_one_is_found() -> None:
    after = [line(13.0 + n, 21 + n, 12.0) for n in range(7)]
    assert judged([*BEFORE, *after], 10.0) == {"first": 3.0, "new": 8.0, "full": 3.0, "lost": 5}


def test_survivors_that_go_on_alone_lose_nothing_and_are_whole_later() -> None:
    late = line(10.2, 25, 1.0)  # a step that was under way
    after = [line(12.0, 26, 11.9, world=2), line(20.0, 40, 19.0)]
    assert judged([*BEFORE, late, *after], 10.0) == {"first": 2.0, "new": 2.0, "full": 10.0, "lost": 0}


def test_a_training_that_does_not_go_on_has_no_figures() -> None:
    assert judged(BEFORE, 10.0) == dict.fromkeys(("first", "new", "full", "lost"))


def test_only_a_changed_script_has_lines() -> None:
    counts = {case.name: lines_for(case) for case in CASES}
    assert counts["transom"] == counts["torchrun"] == counts["ft_launcher"] == 0
    assert 0 < counts["transom-stay"] == counts["transom-best"] == counts["transom-script"]
    assert 0 < counts["inprocess"] < counts["inprocess-best"]


def test_table_has_a_line_for_each_case_and_start() -> None:
    memory = {"rss": 3, "pss": 2}
    row: dict[str, Any] = {"case": "torchft", "start": 0.0, "extra": memory, "lost": 0, "load": 2.0}
    times = {"first": 1.0, "new": 1.0, "full": None}
    text = table([{**row, **times}, {**row, **times, "start": 20.0}, {"case": "torchft", "start": 0.0, "error": "no"}])
    assert [cells.split(" | ")[0] for cells in text.splitlines()[2:]] == ["| torchft", "| torchft, start 20 s"]
    assert "| 1 | 1.0 | 1.0 | never | 0 | 3 MB | 2 MB |" in text


def test_span_says_how_many_never_came() -> None:
    assert span([2.0, None, 4.0]) == "3.0 (2.0 to 4.0), 1 never"
