"""A purge of old files on a scratch file system: what a live run needs stays, or comes back."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.supervise.operator.run_files import DAY, LOOK, RunFiles

MONTHS = 70 * DAY


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    for folder in (run.epochs, run.attempt(7, 0).nodes):
        folder.mkdir(parents=True)
    (run.epochs / "3").touch(0o600)
    for path in (run.settings, run.script, run.submission, run.secret, run.journal, run.attempt(7, 0).peers):
        publish_text(path, f"content of {path.name}\n")
    (run.attempt(7, 0).endpoint("n1")).touch()
    return run


def aged(run: RunDir, seconds: float) -> None:
    for path in run.path.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def purge(run: RunDir) -> None:
    """As sites do it: files that nobody has used for two months, and folders that are empty then."""
    for path in sorted(run.path.rglob("*"), reverse=True):
        old = time.time() - path.stat().st_mtime > 60 * DAY
        if old and path.is_file():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def test_files_that_a_live_run_needs_outlive_a_purge(run: RunDir) -> None:
    clock = 0.0
    files = RunFiles(run, 3, lambda: clock)
    aged(run, MONTHS)
    assert files.look(run.attempt(7, 0)) == ()
    before = {path for path in run.path.rglob("*") if path.is_file()}
    purge(run)
    assert {path for path in run.path.rglob("*") if path.is_file()} == before


def test_times_are_refreshed_once_a_day_at_most(run: RunDir) -> None:
    clock = 0.0
    files = RunFiles(run, 3, lambda: clock)
    aged(run, DAY / 2)
    then = run.settings.stat().st_mtime
    files.look()
    assert run.settings.stat().st_mtime == then
    aged(run, 2 * DAY)
    clock = LOOK / 2
    files.look()
    assert run.settings.stat().st_mtime < time.time() - DAY, "not so soon after the last look"
    clock = LOOK
    files.look()
    assert run.settings.stat().st_mtime > time.time() - 60


def test_deleted_files_are_restored_from_memory_as_they_were(run: RunDir) -> None:
    files = RunFiles(run, 3)
    files.look()
    wanted = {path: path.read_text() for path in (run.settings, run.script, run.submission, run.secret)}
    aged(run, MONTHS)
    os.utime(run.journal)
    purge(run)
    assert not run.settings.exists() and not run.epochs.exists()
    restored = files.look(at_once=True)
    assert set(restored) == {"run.toml", "job.sbatch", "submission.json", "agent.secret", "epochs/3"}
    assert {path: path.read_text() for path in wanted} == wanted
    assert run.secret.stat().st_mode & 0o777 == 0o600
    assert files.look(at_once=True) == ()


def test_run_that_its_user_deleted_does_not_come_back(run: RunDir) -> None:
    files = RunFiles(run, 3)
    files.look()
    shutil.rmtree(run.path)
    assert files.look(at_once=True) == () and not run.path.exists()
