"""Run directories: whole or not at all, private, and found again."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from transom_cli import files
from transom_cli.cli.ckpt_places import run_of_words
from transom_cli.config.load import load, thaw
from transom_cli.config.model import Settings
from transom_cli.errors import NoSuchRun, NotPermitted, TransomError, UsageError
from transom_cli.layout import RunDir
from transom_cli.submit import rundir
from transom_cli.submit.rundir import clean_name, create_run, find_run, list_runs, new_run, path_error, plan_run

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load(site=None, user=Path("/nonexistent"))


def make(root: Path, name: str, second: int, settings: Settings) -> RunDir:
    return new_run(root, name, NOW.replace(second=second), settings, "#!/bin/sh\n")


def test_a_new_run_is_whole_and_private(tmp_path: Path, settings: Settings) -> None:
    root = tmp_path / "a" / "b"
    run = new_run(root, "My run/№1", NOW, settings, lambda path: f"#!/bin/sh\n# {path}\n")
    assert re.fullmatch(r"My-run-1-20260304-050607-[0-9a-f]{4}", run.run_id)
    assert run.script.read_text() == f"#!/bin/sh\n# {run.path}\n"
    assert thaw(run.settings.read_text(), "run.toml") == settings
    assert run.attempts.is_dir() and run.epochs.is_dir() and run.requests.is_dir()
    for path in (root, run.path, *run.path.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert list(root.iterdir()) == [run.path]


@pytest.mark.parametrize(
    ("name", "clean"),
    [("a b", "a-b"), ("../../etc", "etc"), ("", "run"), ("日本", "run"), (".hidden", "hidden"), ("x" * 300, "x" * 100)],
)
def test_names_become_safe(name: str, clean: str) -> None:
    assert clean_name(name) == clean


def test_a_taken_id_is_not_overwritten(tmp_path: Path, settings: Settings) -> None:
    first = plan_run(tmp_path, "r", NOW)
    create_run(first, settings, "one")
    with pytest.raises(FileExistsError):
        create_run(first, settings, "two")
    assert first.script.read_text() == "one" and list(tmp_path.iterdir()) == [first.path]


def test_new_run_takes_another_id_when_one_is_taken(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path, "r", 7, settings)
    fresh = plan_run(tmp_path, "r", NOW)
    plans = iter([first, fresh])
    monkeypatch.setattr(rundir, "plan_run", lambda *_: next(plans))
    assert make(tmp_path, "r", 7, settings) == fresh


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (errno.ENOSPC, TransomError, "free some space"),
        (errno.EDQUOT, TransomError, "free some space"),
        (errno.EROFS, NotPermitted, "writable file system"),
        (errno.EACCES, NotPermitted, "ls -ld"),
        (errno.EIO, TransomError, "another --root"),
    ],
)
@pytest.mark.parametrize("at", range(1, 11))
def test_a_failure_at_any_moment_leaves_nothing(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[TransomError],
    hint: str,
    at: int,
) -> None:
    calls = 0

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "mkdir", failing(os.mkdir))
    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    with pytest.raises(kind, match="cannot create the run directory") as caught:
        make(tmp_path, "r", 1, settings)
    assert calls == at and hint in caught.value.hint and caught.value.why == os.strerror(number)
    assert list(tmp_path.iterdir()) == []


def test_root_that_is_a_file_is_a_usage_error(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot create the run directory"):
            make(root, "r", 1, settings)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_full_file_system(tmp_path: Path, settings: Settings) -> None:
    import subprocess

    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"mount: {mount.stderr.strip()}")
    try:
        with pytest.raises(TransomError, match="cannot create the run directory") as caught:
            new_run(tmp_path, "r", NOW, settings, "#!/bin/sh\n" + "#" * 100_000)
        assert caught.value.why == "No space left on device" and f"df -h {tmp_path}" in caught.value.hint
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_runs_are_found_by_id_name_prefix_path_or_age(tmp_path: Path, settings: Settings) -> None:
    old, new, other = (make(tmp_path, *args, settings) for args in (("gpt", 1), ("gpt", 3), ("gpt-big", 2)))
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / f"x-{NOW:%Y%m%d-%H%M%S}-abcd").mkdir()  # the name of one, but no run.toml
    assert list_runs(tmp_path) == [new, other, old]
    assert find_run(tmp_path) == new
    assert find_run(tmp_path, old.run_id) == old and find_run(tmp_path, "gpt") == new
    assert find_run(tmp_path, "gpt-b") == other
    assert find_run(tmp_path / "nowhere", str(old.path)) == old
    with pytest.raises(NoSuchRun, match="3 runs start with `gp`") as caught:
        find_run(tmp_path, "gp")
    assert old.run_id in caught.value.why


def test_missing_run(tmp_path: Path, settings: Settings) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    with pytest.raises(NoSuchRun, match="no runs in") as none:
        find_run(tmp_path / "nowhere")
    assert none.value.exit_code == 10
    make(tmp_path, "llama", 1, settings)
    with pytest.raises(NoSuchRun, match="no run `lama`") as near:
        find_run(tmp_path, "lama")
    assert "similar: llama" in near.value.why
    for wanted, why in ((tmp_path, "no run.toml"), (tmp_path / "x", "no such directory")):
        with pytest.raises(NoSuchRun, match="no run at") as at:
            find_run(tmp_path, str(wanted))
        assert why in at.value.why
    with pytest.raises(NoSuchRun):
        find_run(tmp_path, "")
    (only,) = list_runs(tmp_path)
    only.summary.touch()
    only.settings.unlink()
    assert list_runs(tmp_path) == [only] and find_run(tmp_path, str(only.path)) == only, "`transom list` shows it"


def test_published_files_replace_at_once_and_keep_the_old_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    files.publish_text(path, "old")
    files.publish_text(path, "new", mode=0o640)
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        files.publish_bytes(path, b"newer")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_folders_that_cannot_be_synced_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(number, "no")))

    refuse(errno.EINVAL)
    files.fsync_dir(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="no"):
        files.fsync_dir(tmp_path)


def test_name_of_a_run_wins_over_a_folder_of_that_name(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, here = tmp_path / "runs", tmp_path / "here"
    run = make(root, "gpt", 1, settings)
    for name in ("gpt", run.run_id, "other"):
        (here / name).mkdir(parents=True)
    monkeypatch.chdir(here)
    assert [run_of_words(word, root) for word in ("gpt", run.run_id)] == [run, run]
    assert [run_of_words(word, root) for word in ("./gpt/", "other", str(here / "gpt"))] == [None, None, None]


def test_hint_of_a_denied_folder_names_the_folder_itself(tmp_path: Path) -> None:
    denied = OSError(errno.EACCES, "Permission denied")
    assert f"`ls -ld {tmp_path}`" in path_error(denied, tmp_path).hint
    assert f"`ls -ld {tmp_path}`" in path_error(denied, tmp_path / "new").hint
