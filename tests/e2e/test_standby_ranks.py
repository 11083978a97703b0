"""Standby ranks on a real Slurm: a relaunch takes them, and ends as an undisturbed run does."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from e2e.support import STEPS, Person, at_step, over, remembering
from e2e.test_agents import wait_for

from transom_cli.layout import AttemptDir
from transom_cli.sandbox import faults, processes
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(600)]


def waiting(sandbox: Sandbox, job: int, launch: int) -> list[int]:
    """PIDs of the standbys of a launch that have executed the rank's command."""
    found = [p for p in processes.of_job(sandbox.cluster, job) if "TRANSOM_STANDBY" in p.environ]
    return [p.pid for p in found if p.environ.get("TRANSOM_LAUNCH") == str(launch)]


def ended(attempt: AttemptDir, launch: int) -> set[str]:
    """What the ranks of a launch became of: "used" for a standby."""
    return {str(json.loads(path.read_text()).get("standby")) for path in attempt.exits(launch).glob("rank-*.json")}


def test_a_relaunch_takes_the_ranks_that_wait(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    options = ("-N", "2", "--set", "launch.standby=true")
    run = person.start(*options, "--", *remembering(tmp_path / "final", "--delay", "0.5"))
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    wait_for(lambda: len(waiting(sandbox, job, 1)) == 2, "no standby of launch 1")
    ready = set(waiting(sandbox, job, 1))
    faults.kill_rank(sandbox, job, 1)
    wait_for(lambda: len(waiting(sandbox, job, 2)) == 2, "no standby of launch 2")
    for pid in waiting(sandbox, job, 2):
        os.kill(pid, signal.SIGKILL)
    faults.kill_rank(sandbox, job, 0)
    view = person.wait(run, over, 240)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    exits = [json.loads(path.read_text()) for path in attempt.exits(1).glob("rank-*.json")]
    assert {int(one["pid"]) for one in exits} == ready
    assert ended(attempt, 1) == {"used"}
    assert ended(attempt, 2) == {"the standby has ended"}
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a standby has outlived the run")
