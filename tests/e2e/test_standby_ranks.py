"""Standby ranks on a real Slurm: a relaunch takes them, and ends as an undisturbed run does."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from e2e.support import STEPS, Person, at_step, over, remembering
from e2e.test_agents import wait_for
from e2e.test_entered_again import logs, recoveries

from transom_cli.layout import AttemptDir
from transom_cli.sandbox import faults, processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.fault_processes import find_rank

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


def said(attempt: AttemptDir) -> list[str]:
    """What the journal says of standbys."""
    lines = map(json.loads, (attempt.path / "launcher.jsonl").read_text().splitlines())
    return [f"{one['what']}: {one['words']}" for one in lines if one["type"] == "standby"]


@pytest.mark.parametrize("lost", [(1,), (0, 1)])
def test_standbys_that_have_run_the_script_take_the_lost_ranks(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str, lost: tuple[int, ...]
) -> None:
    names = ("standby=true", "recoverable=true", "standby_reach=recoverable")
    options = ("-N", "2", *(word for name in names for word in ("--set", f"launch.{name}")))
    command = remembering(tmp_path / "final", "--building", "6", "--delay", "0.8")
    run = person.start(*options, "--", *command)
    job = person.wait(run, at_step(5), 240)["job_id"]
    attempt = run.attempt(job, 0)
    counts = {"node1": 1, "node2": 1}
    view = person.wait(run, lambda view: (view["standbys"] or {}).get("nodes") == counts, 240)
    assert "waiting before the call of train in remembering.py, line " in view["standbys"]["words"]
    ready = set(waiting(sandbox, job, 1))
    assert "has built" not in logs(attempt, 1), "what it prints is kept back"
    for pid in [find_rank(sandbox, job, rank)[0].pid for rank in lost]:
        os.kill(pid, signal.SIGKILL)
    view = person.wait(run, over, 300)
    print(*said(attempt), *recoveries(attempt), logs(attempt, 1)[-3000:], sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    exits = [json.loads((attempt.exits(1) / f"rank-{rank}.json").read_text()) for rank in lost]
    assert {one["standby"] for one in exits} == {"used"} and {int(one["pid"]) for one in exits} <= ready
    built = [line for n in range(2) for line in logs(attempt, n).splitlines() if "has built the model" in line]
    assert len(built) == 2 + len(lost) and len({line.partition("random state")[2] for line in built}) == 1
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a standby has outlived the run")
