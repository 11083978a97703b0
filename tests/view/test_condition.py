"""Each condition of a run, on every surface: the first line of the screen says whether it is all right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from view_scenes import SCENES

from transom_cli.cli.show import code_of
from transom_cli.core.incident import Incident, Stage
from transom_cli.view.condition import result_of
from transom_cli.view.document import to_json
from transom_cli.view.outlook import next_commands
from transom_cli.view.runs import list_lines, list_row
from transom_cli.view.status import screen
from transom_cli.view.text import cells, plain

HEIGHT = {80: 24, 120: 40}
MATRIX = {  # scene: (the first line's word, exit code, the line that says why)
    "pending": ("pending", 0, ""),
    "held": ("held", 21, ""),
    "starved": ("starved", 24, "gpu007 (drained by run other-0a1b)"),
    "preflight": ("preflight", 0, "checking 4 nodes"),
    "starting": ("starting", 0, "waiting for step 1"),
    "healthy": ("training", 0, ""),
    "slow": ("training, slow", 20, "gpu001"),
    "hang": ("training, hang suspected", 20, "no step for 90.0 s"),
    "crash_loop": ("crash loop", 23, "ValueError: loss is not finite at step 18431"),
    "backing_off": ("recovering", 20, ""),
    "leaving": ("leaving", 20, "all ranks save at step 18431"),
    "done": ("done", 0, ""),
    "stopped": ("stopped", 130, ""),
    "failed": ("failed", 1, ""),
    "unknown": ("unknown", 22, ""),
}


@pytest.mark.parametrize("scene", MATRIX)
def test_every_surface_names_the_condition(scene: str, tmp_path: Path) -> None:
    word, code, why = MATRIX[scene]
    view = SCENES[scene](tmp_path)
    for width, height in HEIGHT.items():
        lines = [plain(one) for one in screen(view, width)]
        assert lines[0].removeprefix(view.run_id).strip().startswith(word.upper())
        assert why in " ".join(" ".join(lines[1:4]).split())
        assert len(lines) <= height and max(map(cells, lines)) <= width
    document = json.loads(to_json(view))
    assert document["condition"] == word and why in document["condition_message"]
    assert list_row(view)["condition"] == word
    (row,) = list_lines([view], None)[1:]
    assert all(part in plain(row) for part in (*word.split(", "), why))
    assert code_of(view) == code


def test_a_crash_loop_is_one_entry_and_says_when_it_stops(tmp_path: Path) -> None:
    view = SCENES["crash_loop"](tmp_path)
    assert view.condition.message.endswith("2 times, never past step 18,431; stops at the next one")
    shown = [plain(one) for one in screen(view, 120)]
    assert any(one.startswith("i1 to i2") for one in shown) and not any(one.startswith("i1  ") for one in shown)


def test_a_starved_run_shows_how_to_use_each_node_again(tmp_path: Path) -> None:
    commands = [command for _, command in next_commands(SCENES["starved"](tmp_path))]
    assert {"transom nodes --lift gpu002", "transom nodes --lift gpu007"} <= set(commands)


@pytest.mark.parametrize(
    ("second", "newest", "results"),
    [(7, 3, ["failed again", "repeating steps"]), (9, 12, ["recovered", "recovered"])],
)
def test_only_steps_beyond_the_fault_are_a_recovery(second: int, newest: int, results: list[str]) -> None:
    steps = (7, second)
    incidents = [Incident(f"i{n}", 1, 0, 0.0, step, Stage.CLOSED, result="recovered") for n, step in enumerate(steps)]
    assert [result_of(n, incidents, newest) for n in range(2)] == results
