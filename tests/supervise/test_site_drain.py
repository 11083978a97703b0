"""The rungs between scontrol and exclusion: the site's command, and the administrators' spool."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.slurm.port import SlurmDenied
from transom_cli.supervise.operator import drain as sitedrain
from transom_cli.supervise.operator.drain import ask, drain, reason, request_path, run_command, withdraw

WHY = reason("xid: Xid 79", "r1")


def command(folder: Path, body: str) -> tuple[str, ...]:
    path = folder / "site drain"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir()
    return path


def test_where_slurm_lets_nobody_else_is_asked(tmp_path: Path, spool: Path) -> None:
    slurm = FakeSlurm(admin=True)
    assert drain(slurm, command(tmp_path, f"touch {tmp_path}/asked"), "n2", WHY, spool) == ("drained", "")
    assert not (tmp_path / "asked").exists() and not list(spool.iterdir())


def test_the_sites_command_is_believed_when_slurm_shows_it(tmp_path: Path, spool: Path) -> None:
    slurm = FakeSlurm()

    def denied_then_drained(node: str, why: str) -> None:
        slurm.cluster.nodes[node].drain = True  # what the command below is going to do
        raise SlurmDenied("Slurm refused `scontrol update`", "Slurm said: Invalid user id")

    slurm.drain = denied_then_drained  # type: ignore[method-assign]
    words = command(tmp_path, "exit 0")
    assert drain(slurm, words, "n2", WHY, spool) == ("drained", f"by the site's command: {words[0]}")
    assert not list(spool.iterdir())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("exit 0", "ended with 0, but the node is not drained"),
        ("echo -e 'not \\033[1myours\\n' >&2; exit 1", "ended with 1: not \\x1b[1myours"),
        ("head -c 300000 /dev/urandom >&2; exit 4", "ended with 4: "),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_what_the_command_cannot_do_goes_to_the_spool(tmp_path: Path, spool: Path, body: str, told: str) -> None:
    how, detail = drain(FakeSlurm(), command(tmp_path, body), "n2", WHY, spool)
    assert how == "excluded", "until an administrator has drained it, the run keeps off by itself"
    assert detail.startswith(f"asked the administrators to drain it: {request_path(spool, 'n2')}; Slurm refuses")
    assert "Invalid user id" in detail and told in detail and detail.isprintable() and len(detail) < 1500
    assert request_path(spool, "n2").exists()


def test_a_command_that_does_not_end_is_left_and_the_rest_tried(tmp_path: Path) -> None:
    began = time.monotonic()
    told = run_command(command(tmp_path, "exec sleep 60"), "n2", WHY, patience=0.2)
    assert told.endswith("site drain did not end within 0.2 s")
    assert time.monotonic() - began < 30, "nor is it waited for"


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    assert os.strerror(2) in run_command((str(tmp_path / "none"),), "n2", WHY)


def test_a_spool_that_cannot_be_written_leaves_the_exclusion(tmp_path: Path) -> None:
    how, detail = drain(FakeSlurm(), (), "n2", WHY, tmp_path / "none")
    assert how == "excluded" and "the spool cannot be written" in detail and os.strerror(2) in detail


def test_a_request_says_what_and_its_file_says_who(spool: Path) -> None:
    old = os.umask(0o077)
    try:
        path = ask(spool, "n2", WHY)
    finally:
        os.umask(old)
    request = json.loads(path.read_text())
    assert (request["version"], request["node"], request["reason"]) == (1, "n2", WHY)
    about = path.stat()
    assert stat.S_IMODE(about.st_mode) == 0o644 and about.st_uid == os.getuid()
    assert ask(spool, "n2", WHY) == path and list(spool.iterdir()) == [path], "one for each node"


def test_a_request_is_withdrawn_once(spool: Path) -> None:
    ask(spool, "n2", WHY)
    assert withdraw(spool, "n2") and not withdraw(spool, "n2") and not list(spool.iterdir())


def test_a_link_that_took_the_requests_place_is_not_followed(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered at once, and another user puts a link to a file of ours there."""
    private = spool.parent / "private"
    private.write_text("mine")
    private.chmod(0o600)

    def publish(path: Path, text: str, *, mode: int) -> None:
        path.symlink_to(private)

    monkeypatch.setattr(sitedrain, "publish_text", publish)
    ask(spool, "n2", WHY)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_where_a_requests_name_is_taken_it_has_another(spool: Path) -> None:
    (request_path(spool, "n2") / "full").mkdir(parents=True)
    path = ask(spool, "n2", WHY)
    assert path != request_path(spool, "n2") and path.name.startswith("n2.") and path.name.endswith(".json")
    assert withdraw(spool, "n2") is True and not path.exists()
