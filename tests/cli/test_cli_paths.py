"""Paths that cannot be used, and files that are gone: what happened, why, what now, and never a traceback."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import transom
from typer.testing import CliRunner

from transom_cli.bootstrap.operator import operator_for
from transom_cli.cli import run as running
from transom_cli.cli.app import app
from transom_cli.cli.ckpt_places import checkpoints_of_words, run_of_words
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Phase
from transom_cli.errors import BadNodes, TransomError
from transom_cli.layout import RunDir
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, fold
from transom_cli.supervise.launcher.allocation import require_run_dir
from transom_cli.supervise.lease import Lease

LONG = "x" * 300


@pytest.mark.parametrize("command", [("status",), ("stop",), ("attach",), ("explain",), ("ckpt", "ls")])
def test_a_name_too_long(command: tuple[str, ...], tmp_path: Path) -> None:
    done = transom(*command, f"{tmp_path}/{LONG}")
    assert done.returncode == 2, done.stderr
    assert "File name too long" in done.stderr and "hint:" in done.stderr and "Traceback" not in done.stderr


def test_an_error_of_a_path_is_json_where_json_was_requested(tmp_path: Path) -> None:
    done = transom("ckpt", "ls", f"{tmp_path}/{LONG}", "--json")
    assert json.loads(done.stdout)["error"]["why"] == "File name too long"


def test_json_behind_the_dashes_is_the_trainings_own(tmp_path: Path) -> None:
    done = transom("run", "-f", tmp_path / "none.toml", "--", "python", "train.py", "--json")
    assert done.returncode == 2 and not done.stdout and "No such settings file" in done.stderr


def test_export_to_an_impossible_file(tmp_path: Path) -> None:
    done = transom("ckpt", "export", tmp_path, "-o", tmp_path / f"{LONG}.pt")
    assert done.returncode == 2 and "File name too long" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv to do without it")
@pytest.mark.parametrize("words", [("status",), ("stop",), ("attach", "--foreground"), ("ckpt", "ls")])
def test_a_forbidden_path(words: tuple[str, ...], run: RunDir) -> None:
    run.path.parent.chmod(0o000)
    no_rights = "-dac_override,-dac_read_search"
    without = ("setpriv", f"--bounding-set={no_rights}", f"--inh-caps={no_rights}", "--")
    program = [*without, sys.executable, "-m", "transom_cli", *words, str(run.path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 13, done.stderr
    assert "Permission denied" in done.stderr and "hint: check the permissions" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv to do without it")
def test_a_run_of_somebody_else_is_not_said_to_be_none(run: RunDir) -> None:
    run.path.chmod(0o000)
    no_rights = "-dac_override,-dac_read_search"
    without = ("setpriv", f"--bounding-set={no_rights}", f"--inh-caps={no_rights}", "--")

    def they(*words: str) -> subprocess.CompletedProcess[str]:
        program = [*without, sys.executable, "-m", "transom_cli", *words, "--root", str(run.path.parent)]
        return subprocess.run(program, capture_output=True, text=True, timeout=60)

    for words in (("status",), ("status", run.run_id), ("explain", run.run_id[:-2])):
        done = they(*words)
        assert done.returncode == 13 and f"error: cannot read the run {run.path}\n" in done.stderr, done.stderr
    assert they("status", "another").returncode == 10
    listed = they("list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "warning: 1 run in " in listed.stderr and "no runs" not in listed.stderr


def test_an_interrupt_before_the_view_says_that_the_run_may_continue(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(made: RunDir, **how: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_operate_or_watch", interrupted)
    assert running.operate_or_watch(run, detach=False, foreground=False) == 130
    assert f"end it with `transom stop {run.run_id}`" in capsys.readouterr().err


def test_an_interrupt_before_the_operator_ends_the_run_unsubmitted(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(made: RunDir, **how: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_operate_or_watch", interrupted)
    assert running.operate_new(run, detach=False, foreground=False) == 130
    said = capsys.readouterr().err
    assert f"run {run.run_id} is stopped: interrupted before its job was submitted" in said, said
    state = fold(run.journal).state
    assert state.phase is Phase.STOPPED and "never submitted" in state.verdict
    again = CliRunner().invoke(app, ["stop", str(run.path)])
    assert again.exit_code == 0 and "its job was never submitted" in again.stderr


def test_an_interrupt_while_the_operator_submits_stops_the_run(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Lease.take(run)
    journal = Journal(run.journal, lease.epoch)
    journal.append(ev.Started(1.0, lease.epoch))

    def interrupted(made: RunDir, **how: bool) -> int:
        raise KeyboardInterrupt

    def stops(_seconds: float) -> None:
        if list(run.requests.glob("stop-*.json")):
            journal.append(ev.StopRequested(2.0, "ada"))
            journal.append(ev.Acted(3.0, "cancel/submission", "cancelled"))

    monkeypatch.setattr(running, "_operate_or_watch", interrupted)
    monkeypatch.setattr(time, "sleep", stops)
    assert running.operate_new(run, detach=False, foreground=False) == 130
    journal.close()
    lease.give_up()
    assert f"run {run.run_id} is stopped: interrupted" in capsys.readouterr().err


def test_an_interrupt_after_the_submission_leaves_the_job_alone(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(run.journal, 1)
    journal.append(ev.Started(1.0, 1))
    journal.append(ev.Submitted(2.0, "submit", 7))
    journal.close()

    def interrupted(made: RunDir, **how: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_operate_or_watch", interrupted)
    assert running.operate_new(run, detach=False, foreground=False) == 130
    assert f"end it with `transom stop {run.run_id}`" in capsys.readouterr().err
    assert not list(run.requests.glob("*")) and not fold(run.journal).state.phase.over


def test_the_current_directory_is_gone(run: RunDir, tmp_path: Path) -> None:
    program = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv(sys.executable, "
    here = f"{program}[sys.executable, '-P', '-m', 'transom_cli', *sys.argv[1:]])"

    def from_nowhere(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TRANSOM_ROOT": str(run.path.parent), "PYTHONPATH": str(Path(__file__).parents[2])}
        full = [sys.executable, "-c", here, *words]
        return subprocess.run(full, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    requested = from_nowhere("status")
    assert requested.returncode == 0 and run.run_id in requested.stdout, requested.stderr
    refused = from_nowhere("run", "--dry-run", "--", "true")
    assert refused.returncode == 2 and "current directory no longer exists" in refused.stderr, refused.stderr
    assert list(run.path.parent.iterdir()) == [run.path]


@pytest.mark.parametrize("gone", ["script", "submission"])
def test_a_run_whose_files_are_gone_cannot_be_operated(run: RunDir, gone: str) -> None:
    path: Path = getattr(run, gone)
    path.unlink()
    with pytest.raises(TransomError, match="cannot read") as caught:
        operator_for(run)
    assert str(path) in caught.value.what and "No such file" in caught.value.why and "scancel" in caught.value.hint
    assert not run.lease.exists()


def test_a_damaged_submission_is_reported(run: RunDir) -> None:
    run.submission.write_text('{"options": 3}')
    with pytest.raises(TransomError, match="is damaged"):
        SubmissionRecord.load(run)


def test_operator_takes_a_run_whose_script_is_not_utf8(run: RunDir) -> None:
    assert b"\xe9" in run.script.read_bytes()
    operator = operator_for(run)
    assert run.lease.exists() and operator is not None


def test_a_request_that_cannot_be_written(run: RunDir) -> None:
    Lease.take(run).give_up()
    run.requests.rmdir()
    run.requests.write_text("")
    done = transom("stop", run.path)
    assert done.returncode == 2, done.stderr
    assert f"cannot write a request to {run.requests}" in done.stderr and "hint:" in done.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ELOOP])
def test_a_run_directory_that_a_node_cannot_see(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "stat", fails)
    with pytest.raises(BadNodes, match="not visible on node") as caught:
        require_run_dir(RunDir(Path("/r")))
    assert caught.value.why.startswith("its run.toml ")


def test_folder_of_a_runs_name_does_not_hide_the_run(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / run.run_id).mkdir()
    (tmp_path / "r").mkdir()  # the run's name
    monkeypatch.chdir(tmp_path)
    for word in (run.run_id, "r"):
        assert checkpoints_of_words(word, run.path.parent, make=True) == run.checkpoints
        assert run_of_words(word, run.path.parent) == run
    with pytest.raises(TransomError):  # a path is a path
        checkpoints_of_words("./r/checkpoints", run.path.parent)
