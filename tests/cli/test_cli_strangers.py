"""Other people's run directories: what acts refuses them, what reads says whose they are. No Slurm is needed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cli_support import transom
from slurm_support import OrdinaryUser

from transom_cli.config.load import load
from transom_cli.core.operator.state import Policy
from transom_cli.errors import NotPermitted
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.operator.job import give_up_unsubmitted

NOBODY_KNOWN = 54321  # a user ID without an account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    """Slurm's commands, which note that they were called and refuse; the note is the file `called`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "scontrol", "squeue", "sacct", "scancel", "srun", "planted-python"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\necho no >&2\nexit 1\n')
        (folder / name).chmod(0o755)
    return folder


def _called(tmp_path: Path) -> str:
    path = tmp_path / "called"
    return path.read_text() if path.exists() else ""


def _make(tmp_path: Path, name: str = "demo", second: int = 0, *, over: bool = False) -> RunDir:
    flags = {"slurm.pyslurm_python": str(tmp_path / "bin" / "planted-python"), "slurm.backend": "pyslurm"}
    settings = load(None, flags, site=None, user=Path("/nonexistent"))
    when = datetime(2026, 3, 4, 0, 0, second, tzinfo=timezone.utc)
    run = new_run(tmp_path / "runs", name, when, settings, "#!/bin/bash\n#SBATCH -N1\ntrue\n")
    SubmissionRecord(chdir="/").save(run)
    write_header(run.journal, Policy(), 1)
    if over:
        give_up_unsubmitted(run, "refused")
    return run


def _give(run: RunDir, uid: int) -> None:
    run.path.chmod(0o755)
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, uid, uid)


@pytest.fixture
def act(tmp_path: Path, bin_: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{bin_}:{os.environ['PATH']}", "TRANSOM_ROOT": str(tmp_path / "runs")}
        return transom(*words, XDG_CONFIG_HOME=str(tmp_path / "config"), **env)

    return call


@pytest.mark.parametrize(
    "words",
    [
        ("attach", "--foreground", "{}"),
        ("stop", "{}"),
        ("operate", "--run-dir", "{}"),
        ("attempt-launcher", "--run-dir", "{}", "--", "true"),
        ("notify", "test", "--run", "{}"),
        ("ckpt", "import", "/nonexistent.pt", "{}", "--step", "1"),
    ],
    ids=lambda words: words[0],
)
def test_what_acts_refuses_another_users_run_and_says_whose_it_is(act, tmp_path, ordinary_user: OrdinaryUser, words):
    run = _make(tmp_path)
    run.attempt(1, 0).path.mkdir()
    _give(run, ordinary_user.uid)
    done = act(*(word.format(run.path) for word in words))
    assert done.returncode == 13, (done.stdout, done.stderr)
    assert f"belongs to {ordinary_user.name}" in done.stderr and "sudo -u" in done.stderr
    assert _called(tmp_path) == "" and not list(run.requests.iterdir()) and not run.lease.exists()


def test_without_a_name_the_users_own_newest_run_is_acted_on(act, tmp_path):
    own = _make(tmp_path, "mine", 1, over=True)
    _give(_make(tmp_path, "theirs", 2), NOBODY_KNOWN)
    done = act("stop")
    assert done.returncode == 0 and own.run_id in done.stderr, done.stderr
    assert own.run_id in act("status", "--json").stdout


def test_of_two_runs_with_one_name_the_users_own_is_meant(act, tmp_path):
    own = _make(tmp_path, "llama", 1, over=True)
    _give(_make(tmp_path, "llama", 2), NOBODY_KNOWN)
    assert own.run_id in act("stop", "llama").stderr
    assert json.loads(act("status", "llama", "--json").stdout)["run_id"] == own.run_id


def test_without_a_run_of_ones_own_nothing_is_acted_on(act, tmp_path):
    run = _make(tmp_path)
    _give(run, NOBODY_KNOWN)
    done = act("stop")
    assert done.returncode == 10 and "belongs to user 54321" in done.stderr, done.stderr


@pytest.mark.parametrize("words", [("status",), ("explain",), ("goodput",), ("attempts",), ("report", "-o", "-")])
def test_readers_read_another_users_run_and_say_whose_it_is(act, tmp_path, words):
    run = _make(tmp_path, over=True)
    _give(run, NOBODY_KNOWN)
    done = act(*words)
    assert run.run_id in done.stdout, done
    assert f"{run.run_id} belongs to user 54321" in done.stderr
    assert "planted-python" not in _called(tmp_path)


def test_a_list_says_whose_runs_are_not_ones_own(act, tmp_path):
    _make(tmp_path, "mine", 1, over=True)
    _give(_make(tmp_path, "theirs", 2, over=True), NOBODY_KNOWN)
    lines = act("list").stdout.splitlines()
    assert ["user 54321" in line for line in lines[1:3]] == [True, False], lines


def test_a_planted_file_in_ones_own_run_is_refused(act, tmp_path):
    run = _make(tmp_path, over=True)
    os.chown(run.settings, NOBODY_KNOWN, NOBODY_KNOWN)
    done = act("stop")
    assert done.returncode == 13 and "run.toml" in done.stderr and "54321" in done.stderr


def test_a_planted_attempt_in_ones_own_run_is_refused(act, tmp_path):
    run = _make(tmp_path, over=True)
    run.attempt(1, 0).path.mkdir()
    os.chown(run.attempt(1, 0).path, NOBODY_KNOWN, NOBODY_KNOWN)
    assert act("stop").returncode == 13


@pytest.mark.parametrize("where", ["", "attempts", "operator.jsonl"])
def test_a_run_that_everyone_can_write_is_refused_until_that_ends(act, tmp_path, where):
    run = _make(tmp_path, over=True)
    run.path.chmod(0o755)
    mode = (run.path / where).stat().st_mode
    (run.path / where).chmod(0o777)
    done = act("stop")
    assert done.returncode == 13 and "everyone" in done.stderr and "chmod" in done.stderr, done.stderr
    (run.path / where).chmod(mode)
    assert act("stop").returncode == 0


def test_a_symlink_to_another_users_run_is_refused(act, tmp_path):
    run = _make(tmp_path, over=True)
    moved = tmp_path / "elsewhere"
    run.path.rename(moved)
    _give(RunDir(moved), NOBODY_KNOWN)
    run.path.symlink_to(moved)
    assert act("stop", run.path).returncode == 13


def _group_writable(run: RunDir, gid: int) -> None:
    os.chown(run.path, 0, gid)
    run.path.chmod(0o770)


def test_a_run_that_a_group_can_write_is_refused_unless_the_users_settings_trust_it(
    act, tmp_path, ordinary_user: OrdinaryUser
):
    run = _make(tmp_path, over=True)
    _group_writable(run, ordinary_user.gid)
    done = act("stop")
    assert done.returncode == 13 and f"group {ordinary_user.name}" in done.stderr, done.stderr
    assert "security.trusted_groups" in done.stderr
    config = tmp_path / "config" / "transom" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[security]\ntrusted_groups = ["{ordinary_user.name}"]\n')
    assert act("stop").returncode == 0


def test_a_run_cannot_trust_a_group_by_its_own_settings(act, tmp_path, ordinary_user: OrdinaryUser):
    run = _make(tmp_path, over=True)
    with run.settings.open("a") as file:
        file.write(f'\n[security]\ntrusted_groups = ["{ordinary_user.name}"]\n')
    _group_writable(run, ordinary_user.gid)
    done = act("stop")
    assert done.returncode == 13 and f"group {ordinary_user.name}" in done.stderr


def test_ones_own_private_group_needs_no_trust(act, tmp_path):
    run = _make(tmp_path, over=True)
    _group_writable(run, 0)
    assert act("stop").returncode == 0


def test_a_new_run_is_never_refused_whatever_the_umask(short_dir: Path, bin_, ordinary_user: OrdinaryUser):
    """The shared group of many sites: every new file is the group's to write."""
    from transom_cli.ownership import require_own  # before the user changes: this Python may not be readable then

    made: list[RunDir] = []
    kept = os.umask(0o002)
    try:
        made.append(_make(short_dir / "umask", over=True))
        (made[0].attempt(1, 0).path).mkdir(parents=True)
        (made[0].attempt(1, 0).launcher_journal).write_text("")
    finally:
        os.umask(kept)
    for path in (made[0].path, *made[0].path.rglob("*")):
        os.chown(path, ordinary_user.uid, 100)  # the group `users`
    made[0].path.parent.chmod(0o755)
    made[0].path.parent.parent.chmod(0o755)
    ordinary_user.call(lambda: require_own(made[0], lambda: ()))
    made[0].attempts.chmod(0o777)  # in a folder that nobody else can enter
    ordinary_user.call(lambda: require_own(made[0], lambda: ()))


def test_a_user_without_rights_is_refused_another_users_run(short_dir: Path, bin_, ordinary_user: OrdinaryUser):
    from transom_cli.ownership import require_own

    run = _make(short_dir / "theirs", over=True)
    _give(run, NOBODY_KNOWN)
    run.path.parent.chmod(0o755)
    run.path.parent.parent.chmod(0o755)

    def refused() -> None:
        with pytest.raises(NotPermitted, match="belongs to user 54321"):
            require_own(run, lambda: ())

    ordinary_user.call(refused)
