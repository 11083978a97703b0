"""Counting what a run asks of Slurm: by the minute, by who asks, and with which command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import outage_count
from outage_count import by_minute, gaps, make_wrappers, read_calls

LINES = """\
1000.5\tscontrol\t/usr/bin/python3 -m transom_cli operate --run-dir /r \tshow job -o 7
1010.0\tsrun\t/usr/bin/python3 -m transom_cli launch --kind srun \t--jobid=7
1065.0\tscontrol\t/usr/bin/python3 -m transom_cli operate --run-dir /r \tshow job -o 7
1070.0\tsqueue\tbash -c x \t--me
1110.0\tscontrol\t/usr/bin/python3 -m transom_cli status r \tshow job -o 7
1121.0\tscontrol\t/usr/bin/python3 -m transom_cli operate --run-dir /r \tshow job -o 7
1130.0\tscontrol\thalf a li"""


def test_lines_become_calls_and_half_a_line_none() -> None:
    calls = read_calls(LINES)
    assert [c.who for c in calls] == ["operator", "launcher", "operator", "other", "viewer", "operator"]
    assert (calls[0].program, calls[0].words) == ("scontrol", "show job -o 7")


def test_by_the_minute_and_by_who() -> None:
    first, second = by_minute(read_calls(LINES), 1000.0, 120.0)
    assert (first.total, first.by_who["operator"], first.by_program["srun"]) == (2, 1, 1)
    assert (second.total, second.by_who["operator"], second.by_who["viewer"]) == (4, 2, 1), "the last a moment late"
    assert gaps(read_calls(LINES), "operator") == [64.5, 56.0]


def test_a_wrapper_counts_and_is_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "scontrol").write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit 3\n')
    (real / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{real}:{os.environ['PATH']}")
    monkeypatch.setattr(outage_count, "PROGRAMS", ("scontrol", "not-installed-here"))
    log = tmp_path / "calls.tsv"
    make_wrappers(tmp_path / "bin", log)
    assert [p.name for p in (tmp_path / "bin").iterdir()] == ["scontrol"]
    for words in (["show", "job", "a b"], ["show", "hostnames", "n[1-2]"]):
        done = subprocess.run([tmp_path / "bin" / "scontrol", *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (3, "".join(f"<{w}>" for w in words))
    (call,) = read_calls(log.read_text())
    assert (call.program, call.words) == ("scontrol", "show job a b")
