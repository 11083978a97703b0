"""Standby ranks on a real Slurm: a relaunch takes them, and ends as an undisturbed run does."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.support import STEPS, Person, at_step, over, remembering
from e2e.test_agents import wait_for
from e2e.test_entered_again import logs, recoveries
from e2e.test_spares import launches
from integrations.test_replicas import assert_exact

from transom_cli.files import publish_text
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


def are_ready(launch: int, *nodes: str) -> Callable[[dict[str, Any]], bool]:
    """Whether `transom status` shows one standby of this launch on each of these nodes."""
    counts = dict.fromkeys(nodes, 1)

    def claim(view: dict[str, Any]) -> bool:
        found = view["standbys"] or {}
        return found.get("launch") == launch and found["nodes"] == counts

    return claim


def has_joined(attempt: AttemptDir, rank: int) -> bool:
    joined = [str(one["words"]) for one in recoveries(attempt) if one["what"] == "joined"]
    return any(words.startswith(f"rank {rank} ") for words in joined)


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
    view = person.wait(run, are_ready(1, "node1", "node2"), 240)
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


@pytest.mark.parametrize("fault", ["the others stay", "dead", "drained"])
def test_standbys_of_a_spare_become_the_ranks_of_the_node_that_it_replaces(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str, fault: str
) -> None:
    stay = fault == "the others stay"
    names = ("standby=true", *(("recoverable=true",) if stay else ()))
    options = ("-N", "2", "--spares", "1", *(word for name in names for word in ("--set", f"launch.{name}")))
    command = remembering(tmp_path / "final", "--persist", "5", "--delay", "0.8")
    run = person.start(*options, "--", *command)
    job = person.wait(run, at_step(5), 240)["job_id"]
    attempt = run.attempt(job, 0)
    view = person.wait(run, are_ready(1, "node1", "node2", "node3"), 240)
    assert view["standbys"]["words"] == "2 of 2 for launch 1; 1 of 1 on spare node3"
    ready = set(waiting(sandbox, job, 1))
    if fault == "drained":
        sandbox.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    else:
        faults.kill_node(sandbox, "node2")
    wait_for(lambda: "rank 1 goes on from step" in logs(attempt, 1), "no rank 1 of launch 1")
    if fault != "drained":  # Slurm itself takes minutes
        sandbox.slurm("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    view = person.wait(run, over, 300)
    print(*said(attempt), *recoveries(attempt), logs(attempt, 1)[-3000:], sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    assert launches(run, job) == [["node1", "node2"], ["node1", "node3"]]
    exits = [json.loads(path.read_text()) for path in sorted(attempt.exits(1).glob("rank-*.json"))]
    assert [one["node"] for one in exits] == ["node1", "node3"]
    assert [one.get("standby") for one in exits] == [None if stay else "used", "used"]
    assert {int(one["pid"]) for one in exits[stay:]} <= ready
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a standby has outlived the run")


def test_standbys_that_have_run_the_script_join_elastic_replicas(
    person: Person, sandbox: Sandbox, tmp_path: Path
) -> None:
    import torch

    folder = tmp_path / "out"
    folder.mkdir()
    person.env["PAUSE"] = "0.2"
    names = ("standby=true", "recoverable=true", "standby_reach=recoverable")
    options = ("-N", "3", *(word for name in names for word in ("--set", f"launch.{name}")))
    worker = Path(__file__).parents[1] / "integrations" / "replicas_worker.py"
    run = person.start(*options, "--", sys.executable, str(worker), str(folder), "kept", "1000000")
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    for launch, rank in ((1, 1), (2, 0)):  # rank 0 has the store, and is rank 0 of torch
        view = person.wait(run, are_ready(launch, "node1", "node2", "node3"), 240)
        assert "waiting before the call of train in replicas_worker.py, line " in view["standbys"]["words"]
        faults.kill_rank(sandbox, job, rank)
        wait_for(functools.partial(has_joined, attempt, rank), f"rank {rank} did not join")
    last = 30 + json.loads((folder / "report-2").read_text().splitlines()[-1])["step"]
    publish_text(folder / "last", str(last))
    view = person.wait(run, over, 240)
    print(*said(attempt), *recoveries(attempt), logs(attempt, 1)[-3000:], logs(attempt, 2)[-3000:], sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", last, 0)
    words = [str(one["words"]) for one in recoveries(attempt) if one["what"] == "recovered"]
    assert "a standby took rank 1, 2 survivors" in words[0] and "a standby took rank 0, 2 survivors" in words[1]
    assert json.loads((attempt.exits(2) / "rank-0.json").read_text())["standby"] == "used"
    found = [json.loads(line)["step"] for line in (folder / "report-2").read_text().splitlines()]
    assert found == list(range(1, last + 1)), "a step of the survivor was lost or repeated"
    assert_exact(torch.load(folder / "final-2"), last)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a standby has outlived the run")
