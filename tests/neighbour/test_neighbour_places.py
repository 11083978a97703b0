"""Places that others prepared: a working directory with planted files, and run directories that trap readers."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from planted import EVERYTHING, Planted

from transom_cli.config.load import load
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.operator.job import give_up_unsubmitted

TRANSOM = Path(sys.executable).with_name("transom")  # as a person types it
STRANGER = 54321  # a user ID without an account
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


def _make(root: Path, name: str, second: int = 0) -> RunDir:
    settings = load(None, {}, site=None, user=Path("/nonexistent"))
    when = datetime(2026, 3, 4, 0, 0, second, tzinfo=timezone.utc)
    run = new_run(root, name, when, settings, "#!/bin/bash\n#SBATCH -N1\ntrue\n")
    SubmissionRecord(chdir="/").save(run)
    write_header(run.journal, Policy(), 1)
    give_up_unsubmitted(run, "refused")
    attempt = run.attempt(7, 0)
    attempt.nodes.mkdir(parents=True)
    attempt.launcher_journal.write_text("")
    return run


def _call(root: Path, cwd: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Call transom, with a limit in time and memory: a trap must not keep it, nor fill this machine."""
    limited = ["bash", "-c", 'ulimit -v 4000000; exec "$0" "$@"', str(TRANSOM), *map(str, words)]
    full = {**os.environ, "TRANSOM_ROOT": str(root), "XDG_CONFIG_HOME": str(root / "config"), **env}
    return subprocess.run(
        limited, cwd=cwd, env=full, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40
    )


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--json"),
        *(pytest.param(words, marks=pytest.mark.long) for words in (("list",), ("explain",), ("stop",), ("nodes",))),
        pytest.param(("report", "-o", "-"), marks=pytest.mark.long),
        ("bundle", "-o", "../out.tar.gz"),
        ("run", "--dry-run", "-N", "1", "--", "python", "train.py"),
    ],
    ids=lambda words: words[0],
)
def test_files_planted_in_the_working_directory_change_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    run = _make(tmp_path / "runs", "mine")
    planted = Planted(tmp_path / "here", tmp_path / "marks", (*EVERYTHING, "pydantic", "tomllib", "tomli", "rich"))
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'marks')!r}).write_text('pth')\n"
    for name in ("planted.pth", "distutils-precedence.pth", "setup.py", "conftest.py"):
        (planted.folder / name).write_text(code)
    for name in ("transom.toml", "config.toml", "run.toml", ".transom.toml", "pyproject.toml"):
        (planted.folder / name).write_text('root = "/nonexistent/planted"\n[launch]\npython = "/nonexistent/planted"\n')
    (planted.folder / "rules.toml").write_text("[[rules]]\n")
    for name in ("sbatch", "squeue", "scontrol", "python", "git", "bash"):
        (planted.folder / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/marks\n")
        (planted.folder / name).chmod(0o755)
    done = _call(tmp_path / "runs", planted.folder, *words)
    assert done.returncode == 0 or words[0] == "nodes", (done.stdout[-500:], done.stderr[-2000:])
    assert planted.marks == []
    assert "planted" not in done.stdout.replace(str(tmp_path), "") or words[0] == "run"
    assert words[0] in ("list", "nodes", "run", "bundle", "stop") or run.run_id in done.stdout


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE"])
def test_relative_python_variables_do_not_reach_planted_modules_of_an_operator(tmp_path: Path, variable: str) -> None:
    """transom's own processes start isolated (`start.own`), whatever the caller's shell has."""
    from transom_cli.start import own

    planted = Planted(tmp_path / "here", tmp_path / "marks")
    env = {**os.environ, variable: "." if variable != "PYTHONSTARTUP" else "json/__init__.py"}
    words = own("transom_cli", "--version")
    done = subprocess.run(words, cwd=planted.folder, env=env, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0 and done.stdout.startswith("transom "), done.stderr
    assert planted.marks == []


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _zero(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))


def _link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(100 << 30)  # sparse


def _theirs(path: Path) -> None:
    path.touch()
    os.chown(path, STRANGER + 1, STRANGER + 1)


TRAPS = {"fifo": _fifo, "device": _zero, "link": _link, "huge": _huge, "planted": _theirs}


@needs_root
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    "file",
    [
        "operator.jsonl",
        "operator.lease",
        "operator.socket",
        "attempts/7.0/launcher.jsonl",
        "attempts/7.0/outcome.json",
        "attempts/7.0/nodes/n1.beats",
    ],
)
def test_a_trap_in_another_users_run_is_refused_and_hides_no_other_run(tmp_path: Path, trap: str, file: str) -> None:
    mine = _make(tmp_path / "runs", "mine", 1)
    theirs = _make(tmp_path / "runs", "theirs", 2)
    _give(theirs)
    TRAPS[trap](theirs.path / file)
    if trap != "planted":
        os.chown(theirs.path / file, STRANGER, STRANGER, follow_symlinks=False)
    refused = _call(tmp_path / "runs", tmp_path, "status", theirs.run_id)
    assert refused.returncode == 13 and file in refused.stderr, (refused.stdout, refused.stderr)
    listed = _call(tmp_path / "runs", tmp_path, "list")
    assert listed.returncode == 0 and mine.run_id in listed.stdout, (listed.stdout, listed.stderr)
    assert theirs.run_id in listed.stderr and "is not read" in listed.stderr


@needs_root
@pytest.mark.parametrize("words", [("explain",), ("goodput",), ("attempts",), ("report", "-o", "-"), ("bundle",)])
def test_every_reader_checks_another_users_run_first(tmp_path: Path, words: tuple[str, ...]) -> None:
    theirs = _make(tmp_path / "runs", "theirs")
    _give(theirs)
    _fifo(theirs.journal)
    os.chown(theirs.journal, STRANGER, STRANGER)
    done = _call(tmp_path / "runs", tmp_path, *words, theirs.run_id)
    assert done.returncode == 13 and "is not a regular file" in done.stderr, (done.stdout, done.stderr)


@needs_root
def test_a_link_in_another_users_run_shows_none_of_the_readers_own_files(tmp_path: Path) -> None:
    theirs = _make(tmp_path / "runs", "theirs")
    mine = tmp_path / "mine.txt"
    mine.write_text("my own private words\n")
    _give(theirs)
    theirs.job_log(7).symlink_to(mine)
    os.chown(theirs.job_log(7), STRANGER, STRANGER, follow_symlinks=False)
    done = _call(tmp_path / "runs", tmp_path, "bundle", theirs.run_id, "-o", tmp_path / "out.tar.gz")
    assert "my own private words" not in done.stdout + done.stderr
    assert b"my own private words" not in gzip.decompress((tmp_path / "out.tar.gz").read_bytes())
    os.chown(mine, STRANGER + 1, STRANGER + 1)  # neither the owner's nor root's
    done = _call(tmp_path / "runs", tmp_path, "bundle", theirs.run_id, "-o", tmp_path / "second.tar.gz")
    assert done.returncode == 13 and "slurm-7.log" in done.stderr


def _give(run: RunDir) -> None:
    run.path.chmod(0o755)
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, STRANGER, STRANGER)


@needs_root
@pytest.mark.parametrize("readers", [("status",), ("explain",), ("bundle", "-o", "out.tar.gz")])
def test_reading_another_users_run_writes_nothing_into_it(tmp_path: Path, readers: tuple[str, ...]) -> None:
    theirs = _make(tmp_path / "runs", "theirs")
    _give(theirs)
    before = _snapshot(theirs.path)
    done = _call(tmp_path / "runs", tmp_path, *readers[:1], theirs.run_id, *readers[1:])
    assert done.returncode == 0, done.stderr
    assert _snapshot(theirs.path) == before


def _snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    key: Callable[[Path], tuple[int, int, int]] = lambda p: (p.stat().st_mtime_ns, p.stat().st_size, p.stat().st_mode)  # noqa: E731
    return {str(path): key(path) for path in (folder, *folder.rglob("*"))}
