"""The run directory check from both sides: what a node reads, and whether the asking host sees what it wrote."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from transom_cli.core import codec
from transom_cli.health.check import About
from transom_cli.health.checks.run_dir import (
    RunDirLimits,
    RunDirReading,
    judge_missing,
    judge_run_dir,
    own_file,
    read_missing,
    read_run_dir,
    remove_files,
    token,
)
from transom_cli.health.finding import Finding, Verdict

WORDS = "transom i2 7f3a\nsecond line"


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    return "n1"


def look(path: Path, visible: float = 0.3, timeout: float = 10.0) -> Finding:
    about = About(token=token(str(path), WORDS))
    reading = read_run_dir(about, visible, timeout)
    assert codec.build(RunDirReading, codec.plain(reading)) == reading
    (found,) = judge_run_dir("n1", reading, about, RunDirLimits())
    return found


def test_node_and_asking_host_see_each_others_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(WORDS)
    assert look(path).verdict is Verdict.PASS
    about = About(token=token(str(path), WORDS))
    assert Path(own_file(str(path), "n1")).read_text() == WORDS
    assert read_missing(about, ("n1", "n2"), 0.3) == ("n2",)
    (found,) = judge_missing(("n2",), about, 2)
    assert (found.node, found.verdict) == ("n2", Verdict.SUSPECT) and f"cannot see its file {path}.n2" in found.evidence
    Path(own_file(str(path), "n2")).write_text("of another run")
    assert read_missing(about, ("n2",), 0.0) == ("n2",)
    remove_files(about, ("n1", "n2", "n3"))
    assert list(tmp_path.iterdir()) == []


def test_late_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("of the last attempt")
    threading.Timer(0.4, path.write_text, [WORDS]).start()
    assert look(path, visible=60.0).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file or directory"),
        ("transom i1 0000", "it reads 'transom i1 0000'"),
        ("", "the file is empty"),
        (WORDS + "\n", "it reads"),
    ],
)
def test_different_directory_is_suspected(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    found = look(path)
    assert found.verdict is Verdict.SUSPECT and says in found.evidence and str(path) in found.evidence


def test_unwritable_directory_is_suspected(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(WORDS)
    (tmp_path / ".token.n1.tmp").mkdir()
    found = look(path)
    assert found.verdict is Verdict.SUSPECT and f"cannot write beside {path}: Is a directory" in found.evidence


def test_hanging_file_system_is_suspected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")  # opening it hangs until somebody writes
    found = look(tmp_path / "token", timeout=0.1)
    (tmp_path / "token").write_text(WORDS)
    assert found.verdict is Verdict.SUSPECT and "could not be read or written" in found.evidence


def test_slow_answer_is_monitored_and_no_token_means_not_applicable() -> None:
    slow = RunDirReading("/run/token", WORDS, True, True, "", 3.0)
    assert judge_run_dir("n1", slow, About(), RunDirLimits())[0].verdict is Verdict.MONITOR
    (found,) = judge_run_dir("n1", read_run_dir(About()), About(), RunDirLimits())
    assert (found.verdict, found.applies) == (Verdict.PASS, False)
    assert read_missing(About(), ("n1",), 0.0) == () == judge_missing((), About(), 0)


def test_asking_host_that_sees_few_files_suspects_no_node(tmp_path: Path) -> None:
    about = About(token=token(str(tmp_path / "token"), "words"))
    found = judge_missing(("n1", "n2", "n3"), about, 4)
    assert [f.verdict for f in found] == [Verdict.MONITOR] * 3 and "3 of 4 nodes" in found[0].evidence
    assert judge_missing(("n1",), about, 2)[0].verdict is Verdict.SUSPECT
