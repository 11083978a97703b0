"""A scratch file system whose old files are deleted while a run lives."""

from __future__ import annotations

import shutil

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.sandbox.cluster import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.long]


def test_run_whose_files_were_purged_is_listed_again_and_restarts(person: Person) -> None:
    """What was seen: the run vanished from the list, and its next attempt ended with 14 for want of run.toml."""
    asked = ("-N", "2", "--set", "restart.relaunches=0")
    run = person.start(*asked, "--", *COMMAND, "--steps", "60", "--end", "SIGKILL", "--at", "30")
    person.wait(run, at_step(12))
    for path in (run.settings, run.script, run.submission):
        path.unlink()
    shutil.rmtree(run.epochs)
    assert run.run_id not in person.transom("list").stdout
    assert wait_until(run.settings.exists, 120.0), "the operator restores what the next attempt needs"
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 60, 1), view["verdict"]
    assert run.run_id in person.transom("list").stdout
    told = person.transom("status", run.run_id).stdout
    assert "restored by the operator" in told and "run.toml, job.sbatch, submission.json" in " ".join(told.split())
