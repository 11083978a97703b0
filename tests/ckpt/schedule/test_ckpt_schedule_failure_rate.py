"""Time between failures: the default, and what a run's launchers recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transom_cli.ckpt.schedule import failure_rate
from transom_cli.ckpt.schedule.failure_rate import Attempt, Failures, count, known_failures

DAY = 86400.0


def test_the_time_between_failures():
    assert Failures(8).mean(0.0) == pytest.approx(42.5 * DAY)
    assert Failures(1024).mean(0.0) == pytest.approx(0.332 * DAY, rel=1e-3)
    assert Failures(1024).mean(9 * DAY) == 9 * DAY, "none in nine days"
    assert Failures(1).mean(0.0) == Failures(0).mean(0.0) == 340 * DAY
    assert Failures(10**9).mean(0.0) == 300.0
    one, many = Failures(8, 1, 3600.0).mean(0.0), Failures(8, 12, 12 * 3600.0).mean(0.0)
    assert 3600.0 < many < 2 * 3600.0 < one < 42.5 * DAY
    assert Failures(8, 500, 1.0).mean(0.0) >= 300.0
    assert Failures(8, 12, 0.0).mean(30 * DAY) > Failures(8, 12, 0.0).mean(DAY)


def test_what_memory_does_not_survive_is_rarer():
    run = Failures(8, 12, 12 * 3600.0, 1)
    assert run.mean(0.0) < run.mean_lost(0.0) < 42.5 * DAY
    assert Failures(8, 12, 12 * 3600.0).mean_lost(0.0) == Failures(8).mean(0.0), "none of these lost what nodes held"
    assert Failures(8, 3, 60 * DAY, 3).mean(0.0) == Failures(8, 3, 60 * DAY, 3).mean_lost(0.0)


def test_failures_of_a_run_are_read_from_its_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def attempt(name: str, *records: tuple[float, str] | tuple[float, str, str]) -> None:
        folder = tmp_path / "attempts" / name
        folder.mkdir(parents=True)
        lines = [{"type": r[1], "wall": r[0], **({"status": r[2]} if len(r) > 2 else {})} for r in records]
        (folder / "launcher.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"type": "laun', "[]"]))

    attempt("7.0", (50, "recovery"), (100, "launch"), (400, "recovery"), (500, "launch"), (900, "outcome", "failed"))
    attempt("7.1", (1000, "launch"), (5000, "outcome", "left"))  # a time limit
    attempt("7.2", (6000, "launch"), (6100, "recovery"))  # its batch host died
    attempt("8.0")  # never launched
    attempt("9.0", (9000, "launch"), (9500, "launch"))
    monkeypatch.setenv("TRANSOM_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TRANSOM_ATTEMPT", "9.0")
    monkeypatch.setattr(failure_rate.time, "time", lambda: 10000.0)
    assert known_failures(4) == Failures(4, 2 + 1 + 1, 800.0 + 4000.0 + 100.0 + 1000.0, 2)
    monkeypatch.setenv("TRANSOM_RUN_DIR", str(tmp_path / "nowhere"))
    assert known_failures(4) == Failures(4)
    launches = [{"type": "launch", "wall": n, "nodes": [node]} for n, node in enumerate("aab", 1)]
    (tmp_path / "attempts/9.0/launcher.jsonl").write_text("\n".join(map(json.dumps, launches)))
    monkeypatch.setenv("TRANSOM_RUN_DIR", str(tmp_path))
    assert known_failures(4).lost == 2 + 1, "attempts that ended, and a node that was swapped"
    assert known_failures(4).seen == 2 + 1 + 2
    monkeypatch.delenv("TRANSOM_RUN_DIR")
    assert known_failures(4) == count(4, [Attempt(0, 0.0, True)]) == Failures(4)
