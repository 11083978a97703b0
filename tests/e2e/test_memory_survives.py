"""Snapshots in memory outlive ranks, an agent, a daemon, and last of all the nodes themselves: with real PyTorch."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from e2e.support import STEPS, Person, at_step, over, remembering
from e2e.test_agents import agent_pid, wait_for

from transom_cli.ckpt.snapshot.client import agents_path
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox


def holder_pid(attempt: AttemptDir, node: str) -> int:
    path = agents_path(paths.beats_dir(str(attempt.path), node))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect(path)
        except OSError:
            return 0
        return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def resumed(run: RunDir, view: dict[str, Any], restart: int, launch: int) -> tuple[int, str]:
    """From which step rank 0 of a launch went on, and its whole log."""
    log = (run.attempt(view["job_id"], restart).logs(launch) / "rank-0.log").read_text()
    found = re.search(r"rank 0 goes on from step (\d+)", log)
    assert found is not None, log
    return int(found[1]), log


def last_step(run: RunDir, view: dict[str, Any], launch: int) -> int:
    """The last step of a rank of that launch that had one, by the wrappers' records."""
    ends = [json.loads(p.read_text()) for p in run.attempt(view["job_id"], 0).exits(launch).glob("rank-*.json")]
    return max(int(end["steps"]) for end in ends if end["steps"] is not None)


def gone(attempt: AttemptDir, nodes: tuple[str, ...]) -> bool:
    return not any(holder_pid(attempt, node) for node in nodes)


def test_a_rank_is_killed_between_two_durable_checkpoints(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    run = person.start("-N", "2", "--", *remembering(tmp_path / "final"))
    view = person.wait(run, at_step(20))
    attempt = run.attempt(view["job_id"], 0)
    held = holder_pid(attempt, "node1"), holder_pid(attempt, "node2")
    assert all(held) and len(set(held)) == 2
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    step, log = resumed(run, view, 0, 1)
    assert f"restored step-{step} in memory" in log
    assert last_step(run, view, 0) - step <= 1, "a step is lost at most"
    assert (tmp_path / "final").read_text() == undisturbed
    wait_for(lambda: gone(attempt, ("node1", "node2")), "a daemon has outlived the attempt")


@pytest.mark.long
@pytest.mark.parametrize("both", [False, True], ids=["as_under_linuxproc", "as_under_cgroup"])
def test_a_rank_is_killed_after_its_nodes_agent(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str, both: bool
) -> None:
    """Where Slurm follows processes by control groups, the daemon goes with the agent's step."""
    run = person.start("-N", "2", "--", *remembering(tmp_path / "final"))
    view = person.wait(run, at_step(20))
    attempt = run.attempt(view["job_id"], 0)
    before, held = agent_pid(attempt, "node2"), holder_pid(attempt, "node2")
    os.kill(before, signal.SIGKILL)
    if both:
        os.kill(held, signal.SIGKILL)
    wait_for(lambda: agent_pid(attempt, "node2") != before, "no new agent")
    wait_for(lambda: holder_pid(attempt, "node2"), "no daemon")
    assert (holder_pid(attempt, "node2") == held) is not both
    step = person.status(run)["step"]
    view = person.wait(run, at_step(step + 5))
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    step, log = resumed(run, view, 0, 1)
    assert f"restored step-{step} in memory" in log
    assert last_step(run, view, 0) - step <= 1
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.long
def test_a_holder_is_killed_and_a_rank_later(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    run = person.start("-N", "2", "--", *remembering(tmp_path / "final"))
    view = person.wait(run, at_step(20))
    attempt = run.attempt(view["job_id"], 0)
    before = holder_pid(attempt, "node2")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: holder_pid(attempt, "node2") not in (0, before), "no new daemon")
    view = person.wait(run, at_step(view["step"] + 20))
    assert view["incidents"] == [], "the training has not noticed"
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    step, log = resumed(run, view, 0, 1)
    assert f"restored step-{step} in memory" in log
    assert last_step(run, view, 0) - step <= 1
    assert (tmp_path / "final").read_text() == undisturbed
    logs = "".join(p.read_text() for p in attempt.path.glob("agents*"))
    assert logs.count("the snapshot daemon of this node has died") == 1, logs


@pytest.mark.long
def test_ranks_hang_while_somebody_requeues_the_job(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    """TERM to all of the job, and KILL half a minute later: nobody but the daemons can save."""
    run = person.start("-N", "2", "--", *remembering(tmp_path / "final", "--hang", "20"))
    view = person.wait(run, at_step(20))
    sandbox.slurm("scontrol", "requeue", str(view["job_id"]))
    view = person.wait(run, over, patience=180)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 1)
    told = json.loads(run.attempt(view["job_id"], 0).outcome.read_text())
    assert (told["status"], told["durable"]) == ("stopped", 20)
    assert "step 20 was made durable from memory" in told["why"]
    step, log = resumed(run, view, 1, 0)
    assert step == 20 and "restored step-20 " in log
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.long
def test_ended_attempt_leaves_its_newest_step_durable(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    run = person.start("-N", "2", "--set", "restart.relaunches=0", "--", *remembering(tmp_path / "final"))
    view = person.wait(run, at_step(20))
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over, patience=180)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 1)
    told = json.loads(run.attempt(view["job_id"], 0).outcome.read_text())
    assert f"step {told['durable']} was made durable from memory" in told["why"]
    assert last_step(run, view, 0) - told["durable"] <= 1
    step, _ = resumed(run, view, 1, 0)
    assert step == told["durable"]
    assert (tmp_path / "final").read_text() == undisturbed
