"""A colleague on call and a real run: reads it, requeues it and stops it, through the owner's operator."""

from __future__ import annotations

import grp
import importlib
import os
import stat
import subprocess
from pathlib import Path

import pytest
from e2e.conftest import person  # noqa: F401
from e2e.support import COMMAND, Person, at_step, over
from slurm_support import OrdinaryUser
from test_neighbour_oncall import call_as

import transom_cli.cli.app  # noqa: F401 - imported here, because another user may not be able to read this Python
from transom_cli.cli.requests import requeue, stop
from transom_cli.cli.show import show_status
from transom_cli.errors import NotPermitted
from transom_cli.layout import RunDir
from transom_cli.supervise.operator.request_socket import send_request
from transom_cli.view.read import read_view

pytestmark = [pytest.mark.sandbox, pytest.mark.long]

GROUP = f"transomrun{os.getpid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_a_user_on_call_reads_requeues_and_stops_a_run(
    person: Person,  # noqa: F811
    ordinary_user: OrdinaryUser,
    other_user: OrdinaryUser,
) -> None:
    subprocess.run(["groupadd", GROUP], check=True)
    try:
        gid = grp.getgrnam(GROUP).gr_gid
        person.root.mkdir(mode=0o755)
        share = ("--set", f"run.share=group:{GROUP}", "--set", f"run.on_call={ordinary_user.name}")
        run = person.start("-N", "2", *share, "--", *COMMAND, "--steps", "900", "--delay", "0.2")
        person.wait(run, at_step(5))
        for name in ("transom_cli.bootstrap.slurm", "transom_cli.slurm.cli"):
            importlib.import_module(name)  # other users may not be able to read this Python
        show_status(str(run.path))

        def stranger() -> None:
            with pytest.raises(PermissionError):
                os.listdir(run.path)  # noqa: PTH208
            # the group alone does not let anybody act

        def member() -> None:
            with pytest.raises(NotPermitted, match="refuses the request"):
                send_request(run, "stop")

        def colleague() -> None:
            os.chdir("/")
            assert read_view(run).step >= 5
            assert show_status(str(run.path)) == 0
            requeue(str(run.path), None, False)

        call_as(other_user, stranger)
        call_as(other_user, member, gid)
        call_as(ordinary_user, colleague, gid)
        view = person.wait(run, lambda v: v["starts"] == 1 and v["phase"] == "training")
        author = f"{ordinary_user.name} (uid {ordinary_user.uid})"
        assert [(one["what"], one["who"], one["result"]) for one in view["requests"]] == [
            ("requeue", author, "the job is being requeued")
        ]
        assert view["incidents"][-1]["message"] == f"requeue requested by {author}" and view["excluded"] == []
        _only_secrets_are_private(run, gid)
        call_as(ordinary_user, lambda: stop(str(run.path), None, False), gid)
        view = person.wait(run, over)
        assert view["phase"] == "stopped" and view["verdict"] == f"stopped by {author}"
    finally:
        subprocess.run(["groupdel", GROUP], check=False)


def _only_secrets_are_private(run: RunDir, gid: int) -> None:
    private = {run.secret, run.script, run.submission, *run.attempts.glob("*/beats.suffix")}
    assert len(private) == 5, "two attempts"
    for path in (run.path, *_below(run.path)):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            assert not mode & 0o022, path
            assert bool(mode & stat.S_IRGRP) is (path not in private), (path, oct(mode))
            assert path.lstat().st_gid == gid, path


def _below(folder: Path) -> list[Path]:
    """Everything but checkpoints, sent notifications and empty files, which have modes of their own."""
    skipped = ("checkpoints", "notified", "saved", "epochs")
    return [path for path in folder.rglob("*") if path.relative_to(folder).parts[0] not in skipped and path.exists()]
