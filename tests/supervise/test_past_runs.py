"""What runs print that are well is kept, and what a later run prints beside that is new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.layout import RunDir
from transom_cli.supervise import root_cause as examine_module
from transom_cli.supervise.past_runs import of_past_runs, remember, run_of
from transom_cli.supervise.root_cause import examine

STEPS = "".join(f"step {n} loss 3.{n}\n" for n in range(50))
FINE = STEPS + "warning: flux capacitor 3 failed to charge, trying again\ndone\n"
BROKEN = STEPS + "warning: flux capacitor 9 failed to charge, trying again\nphase coil 12 failed\nclosing files\n"


def run_with(root: Path, name: str, log: str, launch: int = 0) -> RunDir:
    run = RunDir(root / name)
    logs = run.attempt(7, 0).logs(launch)
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text(log)
    run.settings.touch()
    return run


@pytest.fixture
def today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(examine_module, "SETTLE", 0.0)
    return run_with(tmp_path, "llama-20260102-101010-cccc", BROKEN)


def line(run: RunDir) -> str:
    found = examine("k", run, run.attempt(7, 0), 0, 5.0)
    return found.line or found.last


def test_a_short_failure_is_compared_with_runs_before_it(tmp_path: Path, today: RunDir) -> None:
    assert line(today) == "closing files", "there is nothing to compare with"
    remember(run_with(tmp_path, "llama-20260101-101010-aaaa", FINE))
    assert line(today) == "unrecognised: phase coil 12 failed"


@pytest.mark.parametrize(
    "name",
    ["other-20260101-101010-aaaa", "llama-2-20260101-101010-aaaa", "llama-20260103-101010-dddd", "llama-x"],
)
def test_other_runs_and_later_ones_tell_nothing(tmp_path: Path, today: RunDir, name: str) -> None:
    remember(run_with(tmp_path, name, FINE))
    assert of_past_runs(today).templates == () and line(today) == "closing files"


def test_of_many_runs_the_newest_count_and_a_damaged_file_is_none(tmp_path: Path, today: RunDir) -> None:
    for day in range(1, 6):
        run = run_with(tmp_path, f"llama-2025010{day}-101010-aaaa", FINE.replace("done", f"{'abcdef'[day] * 9} done"))
        remember(run)
    run.templates.write_text('{"schema": 7}')
    known = of_past_runs(today)
    assert known.knows("ddddddddd done") and known.knows("eeeeeeeee done")
    assert not known.knows("ccccccccc done") and not known.knows("fffffffff done")


def test_the_last_launch_is_kept_and_a_run_without_logs_is_none(tmp_path: Path, today: RunDir) -> None:
    run = run_with(tmp_path, "llama-20260101-101010-aaaa", "traceback of launch nine\n", launch=9)
    logs = run.attempt(7, 0).logs(10)
    logs.mkdir()
    (logs / "rank-0.log").write_text(FINE)
    remember(run)
    assert of_past_runs(today).knows("done") and not of_past_runs(today).knows("traceback of launch nine")
    empty = RunDir(tmp_path / "llama-20260101-101010-bbbb")
    empty.attempts.mkdir(parents=True)
    remember(empty)
    assert not empty.templates.exists()


def test_transom_diagnose_knows_the_run_that_a_log_lies_in(tmp_path: Path, today: RunDir) -> None:
    remember(run_with(tmp_path, "llama-20260101-101010-aaaa", FINE))
    folder = today.attempt(7, 0).logs(0)
    assert run_of(folder / "rank-0.log") == today and run_of(tmp_path) is None
    (folder / "rank-0.log").write_text(BROKEN + "srun: error: n1: task 0: Exited with exit code 1\n")
    argv = [sys.executable, "-m", "transom_cli", "diagnose", "--json", str(folder)]
    told = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert ["phase coil 12 failed" in words for words in told["unrecognised"]][:1] == [True]
    assert not any("flux capacitor" in words for words in told["unrecognised"])
