"""The run directory from both sides: what a node reads there, and what the asker sees of what it wrote."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from transom_cli.core import codec
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.node import run_dir
from transom_cli.health.node.run_dir import (
    RunDirLimits,
    RunDirReading,
    forget,
    judge_run_dir,
    judge_seen,
    own_file,
    read_run_dir,
    read_seen,
    token,
)

WORDS = "transom i2 7f3a\nsecond line"


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(run_dir, "PATIENCE", 0.3)
    return "n1"


def look(path: Path) -> Finding:
    about = About(token=token(str(path), WORDS))
    reading = read_run_dir(about)
    assert codec.build(RunDirReading, codec.plain(reading)) == reading
    (found,) = judge_run_dir("n1", reading, about, RunDirLimits())
    return found


def test_both_sides_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(WORDS)
    assert look(path).verdict is Verdict.PASS
    about = About(token=token(str(path), WORDS))
    assert Path(own_file(str(path), "n1")).read_text() == WORDS
    assert read_seen(about, ("n1", "n2"), 0.3) == ("n2",)
    (found,) = judge_seen(("n2",), about, 2)
    assert (found.node, found.verdict) == ("n2", Verdict.SUSPECT) and f"{path}.n2 is not seen" in found.evidence
    Path(own_file(str(path), "n2")).write_text("of another run")
    assert read_seen(about, ("n2",), 0.0) == ("n2",)
    forget(about, ("n1", "n2", "n3"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir, "PATIENCE", 60.0)
    path = tmp_path / "token"
    path.write_text("of the last attempt")
    threading.Timer(0.4, path.write_text, [WORDS]).start()
    assert look(path).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file or directory"),
        ("transom i1 0000", "it reads 'transom i1 0000' there"),
        ("", "it is empty there"),
        (WORDS + "\n", "it reads"),
    ],
)
def test_another_directory_than_the_askers(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    found = look(path)
    assert found.verdict is Verdict.SUSPECT and says in found.evidence and str(path) in found.evidence


def test_a_directory_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(WORDS)
    (tmp_path / ".token.n1.tmp").mkdir()
    found = look(path)
    assert (
        found.verdict is Verdict.SUSPECT and f"nothing can be written beside {path}: Is a directory" in found.evidence
    )


def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir, "HANGS", 0.1)
    monkeypatch.setattr(run_dir, "_look", lambda path, words: time.sleep(60))
    found = look(tmp_path / "token")
    assert found.verdict is Verdict.SUSPECT and "neither read nor written" in found.evidence


def test_slow_is_worth_a_look_and_without_a_token_nothing_is() -> None:
    slow = RunDirReading("/run/token", WORDS, True, True, "", 3.0)
    assert judge_run_dir("n1", slow, About(), RunDirLimits())[0].verdict is Verdict.MONITOR
    (found,) = judge_run_dir("n1", read_run_dir(About()), About(), RunDirLimits())
    assert (found.verdict, found.applies) == (Verdict.PASS, False)
    assert read_seen(About(), ("n1",), 0.0) == () == judge_seen((), About(), 0)


def test_whoever_sees_no_ones_file_sees_too_little_itself(tmp_path: Path) -> None:
    about = About(token=token(str(tmp_path / "token"), "words"))
    found = judge_seen(("n1", "n2", "n3"), about, 4)
    assert [f.verdict for f in found] == [Verdict.MONITOR] * 3 and "3 of 4 nodes" in found[0].evidence
    assert judge_seen(("n1",), about, 2)[0].verdict is Verdict.SUSPECT
