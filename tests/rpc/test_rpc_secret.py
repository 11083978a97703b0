"""The run's secret: made once, whole, for its owner alone; read by nobody once others could have had it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from transom_cli.errors import NotPermitted, TransomError
from transom_cli.rpc import secret


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.secret"


def test_what_is_made_is_read(path: Path, tmp_path: Path) -> None:
    secret.make(path)
    assert len(secret.read(path)) == 32
    assert path.read_text() == secret.read(path).hex() + "\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    secret.make(tmp_path / "another")
    assert secret.read(tmp_path / "another") != secret.read(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_its_owner_alone_may_read_it_whatever_the_umask(path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        secret.make(path)
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_one_that_is_there_stays(path: Path) -> None:
    secret.make(path)
    first = path.read_bytes()
    secret.make(path)
    assert path.read_bytes() == first


def test_of_two_makers_the_first_has_made_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret.make(path)
    first = path.read_bytes()
    monkeypatch.setattr(os.path, "lexists", lambda _: False)  # the second looked before the first was done
    secret.make(path)
    assert path.read_bytes() == first
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            secret.make(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o640, 0o620, 0o601, 0o777])
def test_one_that_others_can_touch_is_refused(path: Path, mode: int) -> None:
    secret.make(path)
    path.chmod(mode)
    with pytest.raises(NotPermitted, match=f"{mode:04o}") as caught:
        secret.read(path)
    assert caught.value.hint.startswith(f"rm {path}")


def test_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    secret.make(tmp_path / "true")
    path.symlink_to(tmp_path / "true")
    with pytest.raises(NotPermitted, match="symbolic link"):
        secret.read(path)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_another_users_file_is_refused(path: Path) -> None:
    secret.make(path)
    os.chown(path, 12345, -1)
    with pytest.raises(NotPermitted, match="user 12345"):
        secret.read(path)


def test_what_is_no_file_is_refused_at_once(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(NotPermitted, match="regular"):
        secret.read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"ab" * 32,
        b"ab" * 31 + b"\n",
        b"ab" * 33 + b"\n",
        b"ab" * 32 + b"\n\n",
        b"AB" * 32 + b"\n",
        b"zz" * 32 + b"\n",
    ],
)
def test_one_with_other_content_is_refused_and_its_content_is_not_told(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(TransomError) as caught:
        secret.read(path)
    assert "abab" not in str(caught.value)


def test_none_is_an_error_to_read(path: Path) -> None:
    with pytest.raises(TransomError, match="cannot be used") as caught:
        secret.read(path)
    assert caught.value.why == "No such file or directory"
