"""Odd input and hostile surroundings: closed and full outputs, full disks, damaged journals, contradictory options."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

import pytest
from cli_support import transom

from transom_cli.bootstrap.operator import operator_for
from transom_cli.cli import prune as pruning
from transom_cli.config.load import load
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.submit.prepare import create, prepare
from transom_cli.submit.rundir import new_run, path_error
from transom_cli.supervise import bundle as bundling
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.operator.job import give_up_unsubmitted
from transom_cli.view.read import read_view
from transom_cli.view.status import screen
from transom_cli.view.text import plain


def _shell(command: str, run: RunDir) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m transom_cli {command.format(run=run.path)}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("command", ["status {run}", "list --root {run}/..", "explain {run} --json"])
def test_closed_stdout_is_no_error(command: str, run: RunDir) -> None:
    done = _shell(f"{command} >&-", run)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["status {run}", "list --root {run}/.. --json", "explain {run} --json"])
def test_full_disk_behind_stdout_is_reported_on_stderr(command: str, run: RunDir) -> None:
    done = _shell(f"{command} >/dev/full", run)
    first, why, *_, hint = done.stderr.splitlines()
    assert done.returncode == 1 and first == "error: cannot write the output" and why == "  No space left on device"
    assert hint.startswith("hint: free some space")


def test_bundle_that_does_not_fit_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundling.tarfile.TarFile, "addfile", full)
    target = tmp_path / "ticket.tar.gz"
    with pytest.raises(OSError, match="No space"):
        bundling.write_archive(target, [("a", b"x")])
    assert not target.exists()


def test_bundle_of_a_run_whose_journal_is_no_file(run: RunDir, tmp_path: Path) -> None:
    run.journal.unlink()
    run.journal.mkdir()
    done = transom("bundle", run.path, "-o", tmp_path / "ticket.tar.gz")
    assert done.returncode == 0 and "state.json" in done.stdout, done.stderr


def test_bundle_is_not_written_to_a_file_named_dash(run: RunDir, tmp_path: Path) -> None:
    done = transom("bundle", run.path, "-o", "-", cwd=tmp_path)
    assert done.returncode == 2 and "name a file with --output" in done.stderr and not (tmp_path / "-").exists()


def test_prune_reports_only_what_it_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for second in (1, 2):
        when = datetime(2026, 3, 4, 0, 0, second, tzinfo=timezone.utc)
        made = new_run(tmp_path, f"r{second}", when, load(site=None, user=Path("/nonexistent")), "#!/bin/bash\n")
        write_header(made.journal, Policy(), 1)
        give_up_unsubmitted(made, "refused")
        runs.append(made)
    rename = Path.rename

    def read_only(path: Path, to: Path) -> Path:
        if path == runs[0].path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", read_only)
    with pytest.raises(pruning.typer.Exit):
        pruning.prune(keep=0, yes=True, root=tmp_path, json_=True)
    found = json.loads(capsys.readouterr().out)
    assert [one["run_id"] for one in found["runs"]] == [runs[1].run_id] and len(found["failed"]) == 1
    assert runs[0].path.exists() and not runs[1].path.exists()


@pytest.mark.parametrize("words", ["no such directory", "it contains no run.toml"])
def test_operate_without_a_run_there(words: str, tmp_path: Path) -> None:
    done = transom("operate", "--run-dir", tmp_path / "none" if "such" in words else tmp_path)
    assert done.returncode == 10 and words in done.stderr, done.stderr


def test_operate_says_that_the_run_has_ended(run: RunDir) -> None:
    give_up_unsubmitted(run, "refused")
    done = transom("operate", "--run-dir", run.path)
    assert done.returncode == 1 and f"run {run.run_id} has already ended: failed" in done.stderr


def test_operator_that_cannot_write_its_lease_says_so(run: RunDir) -> None:
    run.epochs.rmdir()
    run.epochs.write_text("")
    with pytest.raises(TransomError, match="cannot write the lease") as caught:
        operator_for(run)
    assert "scancel" in caught.value.hint


def test_hint_on_a_read_only_file_system_is_a_sentence() -> None:
    error = path_error(OSError(errno.EROFS, "Read-only file system"), Path("/r"), instead="cancel the job: `scancel 7`")
    assert error.hint == "use a writable file system, or cancel the job: `scancel 7`"


@pytest.mark.parametrize("content", [b"", b"\x00\xff\n", b'{"type": "Other"}\n'])
@pytest.mark.parametrize("command", ["status", "stop", "explain"])
def test_damaged_journal_says_how_to_continue(run: RunDir, content: bytes, command: str) -> None:
    run.journal.write_bytes(content)
    done = transom(command, run.path)
    assert done.returncode == 1 and "is not a journal of transom" in done.stderr
    assert "squeue --me" in done.stderr and str(run.checkpoints) in done.stderr and "None" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("explain", "r", "i1", "-i", "i2"), 2, "`i1` and `--incident i2` were both given"),
        (("list", "--state", ","), 2, "`--state` names no state"),
        (("list", "--since", "7"), 2, "for example 12h or 7d"),
        (("status", "4711"), 10, "job 4711 belongs to the run r-"),
        (("status", "--root", "/nonexistent"), 10, "no such directory"),
        (("list", "--root", "/nonexistent"), 0, "no runs in /nonexistent (no such directory)"),
        (("operate",), 2, "neither was given"),
        (("operate", "--all", "--run-dir", "/r"), 2, "both were given"),
    ],
)
def test_errors_say_why(run: RunDir, words: tuple[str, ...], code: int, what: str) -> None:
    run.attempt(4711, 0).path.mkdir()
    done = transom(*words, TRANSOM_ROOT=str(run.path.parent))
    assert done.returncode == code and what in done.stderr, done.stderr


def test_long_error_of_slurm_stays_readable_in_status(run: RunDir) -> None:
    journal = Journal(run.journal, 1)
    for event in (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), ev.SlurmLost(3.0, "squeue: error: a\nfatal: b")):
        journal.append(event)
    journal.close()
    text = "\n".join(plain(line) for line in screen(read_view(run), None))
    assert "squeue: error: a fatal: b" in text and "\\n" not in text


def test_full_disk_leaves_no_half_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("transom_cli.submit.prepare.write_header", full)
    prepared = prepare(("--", "true"), None, {"root": str(tmp_path / "runs")}, lambda _cluster: (), force=True)
    with pytest.raises(TransomError, match="cannot create the run directory") as error:
        create(prepared)
    assert "No space left" in error.value.why and list((tmp_path / "runs").glob("*-*")) == []
