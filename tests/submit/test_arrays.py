"""A job array of a user's script: each element is a run, and what that cannot carry is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.errors import UsageError
from transom_cli.submit.prepare import prepare
from transom_cli.submit.script import MAX_ELEMENTS, elements, refuse_whole


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("7", (7,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-6:3", (0, 3, 6)),
        ("0-7:3,9,1", (0, 3, 6, 9, 1)),
        ("1,1,1-2", (1, 2)),
        (" 4 , 5 ", (4, 5)),
        (f"0-{MAX_ELEMENTS - 1}", tuple(range(MAX_ELEMENTS))),
        ("0-900:100", tuple(range(0, 901, 100))),
    ],
)
def test_elements(spec: str, found: tuple[int, ...]) -> None:
    assert elements(spec, "line 2") == found


@pytest.mark.parametrize("spec", ["", "a", "3-1", "1-", "-1", "1-4:0", "1,,2", "1;2", "1-2-3", "0x1", "9" * 10])
def test_what_sbatch_would_refuse_too(spec: str) -> None:
    with pytest.raises(UsageError, match="cannot be parsed") as raised:
        elements(spec, "line 2 of the script")
    assert raised.value.why == "line 2 of the script" and raised.value.hint


@pytest.mark.parametrize("spec", [f"0-{MAX_ELEMENTS}", "0-999999999", ",".join(map(str, range(MAX_ELEMENTS + 1)))])
def test_more_elements_than_operators_are_sensible(spec: str) -> None:
    with pytest.raises(UsageError, match=f"more than {MAX_ELEMENTS} elements") as raised:
        elements(spec, "line 2")
    assert "for i in" in raised.value.hint


def test_a_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="with a limit"):
        elements("0-7%2", "line 2")


@given(st.text("0123456789-:,% ", max_size=30))
def test_any_text_is_read_or_refused(spec: str) -> None:
    try:
        found = elements(spec, "line 2")
    except UsageError:
        return
    assert 0 < len(found) <= MAX_ELEMENTS and len(set(found)) == len(found) and min(found) >= 0


def test_a_script_that_asks_how_many_there_are() -> None:
    refuse_whole("echo $SLURM_ARRAY_TASK_ID ${SLURM_ARRAY_JOB_ID}_x")
    with pytest.raises(UsageError, match="whole array") as raised:
        refuse_whole('python train.py --shard "$SLURM_ARRAY_TASK_ID/${SLURM_ARRAY_TASK_COUNT}"')
    assert "SLURM_ARRAY_TASK_COUNT" in raised.value.why


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [key for key in os.environ if key.startswith(("SBATCH_", "TRANSOM_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TRANSOM_ROOT", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_element_is_a_run_with_its_own_name_and_number(here: Path) -> None:
    (here / "sweep.sbatch").write_text("#!/bin/bash\n#SBATCH --array=0-4:2\n#SBATCH -J seeds\ntrue\n")
    runs = prepare(("sweep.sbatch", "x"), None, {}).each()
    assert [run.settings.name for run in runs] == ["seeds-0", "seeds-2", "seeds-4"]
    plans = [run.record(here) for run in runs]
    assert [[x for x in plan.options if "array" in x] for plan in plans] == [
        ["--array=0"],
        ["--array=2"],
        ["--array=4"],
    ]
    assert all(plan.args == ("x",) for plan in plans)
    assert len({run.script(here) for run in runs}) == 1, "the script is never changed"


def test_script_without_an_array_is_one_run(here: Path) -> None:
    (here / "one.sbatch").write_text("#!/bin/bash\ntrue\n")
    (run,) = prepare(("one.sbatch",), None, {}).each()
    assert run.settings.name == "one" and not any("array" in x for x in run.record(here).options)
