"""`transom report` as a person calls it, in processes of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from report_made import RECORDED
from report_parsed import Page


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(shutil.copytree(RECORDED / "node_killed", tmp_path_factory.mktemp("runs") / "node_killed"))
    (path / "run.toml").write_text("steps = 60\n")
    return path


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def transom(*words: object, cwd: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transom_cli", "report", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, umask=umask)


def test_a_file_named_after_the_run_here(run: Path, tmp_path: Path) -> None:
    done = transom(run, cwd=tmp_path, umask=0o027)
    assert (done.returncode, done.stdout) == (0, "")
    path = tmp_path / "node_killed.html"
    assert done.stderr.startswith("node_killed.html: ") and done.stderr.endswith(" KiB\n")
    assert "node_killed" in Page(path.read_text()).texts[0]
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == [path.name]


@pytest.mark.long
def test_an_older_report_is_replaced_and_nothing_else_without_force(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    assert transom(run, "-o", path, cwd=tmp_path).returncode == 0
    first = path.stat().st_ino
    assert transom(run, "-o", path, cwd=tmp_path).returncode == 0
    assert path.stat().st_ino != first
    path.write_text("<p>mine</p>")
    done = transom(run, "-o", path, cwd=tmp_path)
    assert done.returncode == 2 and path.read_text() == "<p>mine</p>"
    hint = "hint: replace it with --force, or name another file: -o FILE"
    assert done.stderr == f"error: {path} exists and is not a transom report\n\n{hint}\n"
    assert transom(run, "-o", path, "--force", cwd=tmp_path).returncode == 0
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_a_folder_gets_a_file_and_a_dash_is_the_output(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert transom(run, "-o", "folder", cwd=tmp_path).returncode == 0
    done = transom(run, "-o", "-", cwd=tmp_path)
    assert done.stderr == "" and Page(done.stdout).texts
    assert (tmp_path / "folder" / "node_killed.html").exists() and names(tmp_path) == ["folder"]


@pytest.mark.parametrize("out", ["none/out.html", "file/out.html"])
def test_a_place_that_cannot_be_written_is_named(out: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = transom(run, "-o", out, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"error: cannot write the report {out}\n") and "-o FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_such_run(tmp_path: Path) -> None:
    done = transom("nothing", "--root", tmp_path, cwd=tmp_path)
    assert done.returncode == 10 and names(tmp_path) == []


def test_a_pipe_that_ends_early(run: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m transom_cli report {run} -o - | head -c 20"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "<!DOCTYPE html>\n<htm" and done.stderr == ""


def test_followed_report_ends_with_the_run_and_no_longer_refreshes(run: Path, tmp_path: Path) -> None:
    done = transom(run, "--follow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'http-equiv="refresh"' not in (tmp_path / "node_killed.html").read_text()
    assert transom(run, "--follow", "-o", "-", cwd=tmp_path).returncode == 2


def test_page_of_a_live_run_refreshes_itself() -> None:
    from transom_cli.layout import RunDir
    from transom_cli.view.read_history import read_report
    from transom_cli.view.report.page import page
    from transom_cli.view.report.sections import document

    text = page(document(read_report(RunDir(RECORDED / "node_killed"))), refresh=30)
    assert '<meta http-equiv="refresh" content="30">' in text
