"""The file of secrets: 0600 or refused, and never quoted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transom_cli.bootstrap.notifications import secrets_of
from transom_cli.config.load import load
from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.notify.secrets import read_secret


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets.toml"


def test_url_token_and_headers(file: Path) -> None:
    write(file, '[a]\nurl = "https://h.example/SECRET#part"\ntoken = "T"\nheaders = { "X-Key" = "k v" }\n')
    secret = read_secret(file, "a")
    assert secret.url == "https://h.example/SECRET"
    assert secret.headers == (("X-Key", "k v"), ("Authorization", "Bearer T"))
    assert "SECRET" not in repr(secret) and "k v" not in repr(secret)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_file_that_others_may_touch_is_refused(file: Path, mode: int) -> None:
    write(file, '[a]\nurl = "https://h/x"\n', mode)
    with pytest.raises(NotPermitted) as caught:
        read_secret(file, "a")
    assert f"its mode is {mode:04o}" in caught.value.why and f"chmod 600 {file}" in caught.value.hint


def test_a_file_of_another_user_is_refused(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    write(file, '[a]\nurl = "https://h/x"\n')
    os.chown(file, 12345, -1)
    with pytest.raises(NotPermitted):
        read_secret(file, "a")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, file: Path) -> None:
    os.mkfifo(file, 0o600)
    for path in (file, tmp_path, tmp_path / "gone", Path("/dev/zero")):
        with pytest.raises(UsageError):
            read_secret(path, "a")
    write(tmp_path / "big", "#" * 100_000)
    with pytest.raises(UsageError, match="must be a regular file of at most"):
        read_secret(tmp_path / "big", "a")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no table [a]"),
        ("a = 1", "has no table [a]"),
        ("[a]", "it has no url"),
        ('[a]\nurl = ""', "it has no url"),
        ('[a]\nurl = ["SECRET"]', "it has no url"),
        ('[a]\nurl = "file:///SECRET"', "not http or https"),
        ('[a]\nurl = "SECRET"', "not http or https"),
        ('[a]\nurl = "https:///SECRET"', "not http or https"),
        ('[a]\nurl = "https://h:99999/SECRET"', "cannot be parsed"),
        ('[a]\nurl = "https://[h/SECRET"', "cannot be parsed"),
        ('[a]\nurl = "https://ann:SECRET@h/x"', "belong in headers"),
        ('[a]\nurl = "https://h/SECRET\\r\\nX: y"', "not http or https|control characters|cannot be parsed"),
        ('[a]\nurl = "https://h/SECRET x"', "contains spaces"),
        ('[a]\nurl = "https://h/é"', "non-ASCII"),
        ('[a]\nurl = "https://h/x"\nSECRET = 1', "keys other than url, token, headers"),
        ('[a]\nurl = "https://h/x"\nheaders = "SECRET"', "not a table"),
        ('[a]\nurl = "https://h/x"\ntoken = "SEC\\nRET"', "not one line"),
        ('[a]\nurl = "https://h/x"\ntoken = 5', "not one line"),
        ('[a]\nurl = "https://h/x"\nheaders = { "SECRET:" = "v" }', "not one line"),
        ('[a]\nurl = "https://h/SECRET', "an error at"),
        ('SECRET', "an error at"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_reported_without_a_word_of_it(file: Path, text: str, why: str) -> None:
    write(file, text)
    with pytest.raises(TransomError) as caught:
        read_secret(file, "a")
    found = f"{caught.value}{caught.value.__cause__}"
    assert any(words in found for words in why.split("|")), found
    assert "SECRET" not in found and "SEC" not in found.replace("SECRETS", "")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=8, max_size=40))
def test_no_text_of_a_broken_file_comes_into_the_error(file: Path, secret: str) -> None:
    write(file, f"[a]\nurl = {secret}\n")
    try:
        read_secret(file, "a")
    except TransomError as error:
        assert secret not in str(error)


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(site=None, user=tmp_path / "none")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert secrets_of(settings) == Path("/home/ann/.config/transom/secrets.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert secrets_of(settings) == Path("/x/transom/secrets.toml")
    named = load(None, {"notify.secrets": str(tmp_path)}, site=None, user=tmp_path / "none")
    assert secrets_of(named) == tmp_path
