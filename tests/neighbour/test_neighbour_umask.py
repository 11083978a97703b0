"""Files and folders are private whatever the umask, and another user can neither replace nor enter them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser

from transom_cli.files import make_private, make_state_folder, open_private
from transom_cli.health.history.files import make_folder
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.submit.rundir import make_root

ROOT = Path(__file__).parents[2]
SAVES = """
import sys, torch
from pathlib import Path
from transom_cli.ckpt.checkpointer import Checkpointer
trainer = Checkpointer({"weights": torch.zeros(10)}, Path(sys.argv[1]), every=1, persist=1, keep=1)
trainer.restore()
for step in (1, 2): trainer.save(step)
trainer.wait(strict=True)
trainer.close()
"""


def transom(*words: str | Path, umask: int, env: Mapping[str, str], **more: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-m", "transom_cli", *map(str, words)], env={**clean, **env}, umask=umask, cwd=ROOT,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, **more,  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def loose(top: Path, *but: str) -> list[str]:
    """What others could write, what is executable data, and folders that are not private. `but`: names to leave out."""
    found = []
    for path in (top, *sorted(top.rglob("*"))):
        if path.is_symlink() or path.is_socket() or any(path.match(name) for name in but):
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o022 or mode & (0o077 if path.is_dir() else 0o111):
            found.append(f"{mode:04o} {path.relative_to(top.parent)}")
    return found


def as_user(user: OrdinaryUser, act: Callable[[], object]) -> None:
    """Call `act` in a process of that user, with umask 000."""
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(user.gid)
            os.setuid(user.uid)
            os.umask(0)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def home(short_dir: Path, tmp_path: Path) -> Iterator[Path]:
    made = short_dir / f"home-{tmp_path.name}"
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.mark.sandbox
@pytest.mark.parametrize("umask", [0o000, pytest.param(0o002, marks=pytest.mark.long)], ids="{:03o}".format)
def test_a_whole_run_leaves_nothing_that_others_can_write(healed_sandbox: Sandbox, home: Path, umask: int) -> None:
    env = {**healed_sandbox.env(), "HOME": str(home), "TRANSOM_STATE_DIR": "", "TRANSOM_HEALTH__PROBE": "false"}
    train = "import time; from transom_cli import beat\nfor n in range(20): beat(n); time.sleep(0.05)"
    transom("run", "-N", "2", "--name", "loose", "--", sys.executable, "-c", train, umask=umask, env=env)
    runs = list((home / ".transom" / "runs").iterdir())
    assert len(runs) == 1 and (runs[0] / "operator.jsonl").exists()
    transom("report", runs[0].name, "-o", home / "r.html", umask=umask, env=env)
    # Slurm creates the job's and the ranks' logs with the umask of the user's shell, in private folders.
    assert loose(home / ".transom", "slurm-*.log", "rank-*.log") == []
    assert stat.S_IMODE((home / "r.html").stat().st_mode) == 0o644


def test_checkpoints_are_private(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = tmp_path / "new" / "checkpoints"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    command = [sys.executable, "-c", SAVES, str(place)]
    done = subprocess.run(command, env=env, umask=0, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert any(path.name.startswith("step-") for path in place.iterdir())
    assert loose(place.parent) == []


def test_another_user_cannot_rename_what_is_kept_at_home(
    ordinary_user: OrdinaryUser, other_user: OrdinaryUser, tmp_path: Path
) -> None:
    """Under umask 000, `~/.transom` was 0777: another user could put a history of their own in its place."""
    state, taken = ordinary_user.home / ".transom", other_user.home / "taken"
    as_user(ordinary_user, lambda: make_folder(state / "nodes"))
    assert loose(state) == []
    for folder in (state / "nodes", state):  # as an earlier version has left them
        folder.chmod(0o777)
        as_user(ordinary_user, lambda: make_folder(state / "nodes"))
        assert [path for path in (state, state / "nodes") if path.stat().st_mode & 0o022] == []
        thief = {"user": other_user.uid, "group": other_user.gid, "extra_groups": []}
        done = subprocess.run(["mv", str(state / "nodes"), str(taken)], capture_output=True, text=True, **thief)
        assert done.returncode != 0 and "Permission denied" in done.stderr


def test_a_state_folder_of_another_user_is_refused(ordinary_user: OrdinaryUser, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, ordinary_user.uid, ordinary_user.gid)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_state_folder(theirs)


def test_the_default_folder_of_runs_is_repaired_and_an_open_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ours = tmp_path / ".transom" / "runs"
    ours.mkdir(parents=True)
    ours.parent.chmod(0o777), ours.chmod(0o777)
    make_root(ours)
    assert [path for path in (ours.parent, ours) if path.stat().st_mode & 0o022] == []
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode in (0o777, 0o1777, 0o2775):
        shared.chmod(mode)
        with pytest.raises(PermissionError, match="chmod o-w") if mode == 0o777 else contextlib.nullcontext():
            make_root(shared)
        assert stat.S_IMODE(shared.stat().st_mode) == mode, "a folder that the user chose stays as it is"


def test_folders_above_are_private_and_existing_ones_stay(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o775)  # a project's, shared by a group on purpose
    before = os.umask(0)
    try:
        make_private(there / "a" / "b")
        with open_private(there / "a" / "file", "a") as file:
            file.write("text")
    finally:
        os.umask(before)
    assert loose(there) == [f"0775 {there.name}"]
    with pytest.raises(FileExistsError):
        make_private(there / "a" / "file")
