"""bench/diagnosis_report.py's figures: what counts as right, and which rules one source alone supports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from diagnosis_score import Label, Told, accuracy, confusion, labels, misses, only_from, same_line

BENCH = Path(__file__).resolve().parents[2] / "bench"
LONG = "ValueError: a long enough line of a log to be itself"
OOM = Label("1.log", "cuda_oom", "stop", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "a/one")
HANG = Label("2.log", "nccl_hang", "requeue", "Watchdog caught collective operation timeout", "b/two")
WELL = Label("3.log", "benign", "none", "", "b/two")
ALL = (OOM, HANG, WELL)
TOLD = {
    "1.log": Told("cuda_oom", "stop", f"\x1b[31m{OOM.root_line}\x1b[0m (GPU 0)", "cuda-oom"),
    "2.log": Told("user_code", "stop", "KeyError: 'x'", "python-exception"),
    "3.log": Told(),
}


@pytest.mark.parametrize(("wanted", "told", "same"), [
    ("ValueError: x", " 96%|###| 3/4\x1b[0mValueError: x", True),
    (f"[rank0]: {LONG}", LONG, True),
    (f"[rank0]: {LONG}", "ValueError", False),
    ("Killed", "Killed", True),
    ("Killed", "", False),
])  # fmt: skip
def test_the_same_line(wanted: str, told: str, same: bool) -> None:
    assert same_line(wanted, told) is same


def test_share_of_correct_answers() -> None:
    assert accuracy(ALL, TOLD) == {
        "category": (2, 3),
        "action": (2, 3),
        "root line": (1, 2),
        "benign logs quiet": (1, 1),
    }
    assert accuracy([WELL], {"3.log": TOLD["1.log"]})["benign logs quiet"] == (0, 1)


def test_rules_that_one_source_alone_supports() -> None:
    assert only_from(ALL, TOLD) == {"a/one": {"cuda-oom"}, "b/two": {"python-exception"}}
    other = Label("4.log", "cuda_oom", "stop", "", "c/three")
    assert only_from([*ALL, other], {**TOLD, "4.log": TOLD["1.log"]}) == {"b/two": {"python-exception"}}


def test_tables_name_what_was_mistaken() -> None:
    assert "nccl_hang               0/1      user_code 1" in confusion(ALL, TOLD)
    (file, wanted, told) = misses(ALL, TOLD)
    assert "2.log (b/two): category, action, root line" in file
    assert HANG.root_line in wanted and "python-exception" in told


def test_labels_are_read_and_a_bad_one_is_reported() -> None:
    line = json.dumps({"file": "1.log", "category": "benign", "action": "none", "root_line": None, "group": "g"})
    assert labels(line + "\n") == (Label("1.log", "benign", "none", "", "g"),)
    with pytest.raises(KeyError):
        labels('{"file": "1.log"}')


def report(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / "diagnosis_report.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(BENCH.parent)},
    )


def test_the_report_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text(f"{OOM.root_line}\n")
    (tmp_path / "3.log").write_text("step 1 loss: 2.0\n")
    entries = [OOM.__dict__, WELL.__dict__]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    told = report(tmp_path)
    assert told.returncode == 0, told.stderr
    rows = {line.split("  ")[0]: line for line in told.stdout.splitlines()}
    assert "2/2 (100%)" in rows["category"] and "1/2 (50%)" in rows["category"], "without the only log of the rule"
    assert "nothing missed" in told.stdout


def test_report_names_missing_logs(tmp_path: Path) -> None:
    told = report(tmp_path / "nowhere")
    assert told.returncode == 2 and "no labelled logs in" in told.stderr and "LABELS=" in told.stderr
