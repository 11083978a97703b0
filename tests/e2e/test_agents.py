"""A node's agent dies while its node lives: the launcher starts it again, and faults are handled as before."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.support import COMMAND, PATIENCE, Person, at_step, over

from transom_cli.heartbeat.table import decode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox


def wait_for(claim: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def attempt_of(run: RunDir, view: dict[str, Any]) -> AttemptDir:
    return run.attempt(view["job_id"], 0)


def agent_pid(attempt: AttemptDir, node: str) -> int:
    return int(json.loads(attempt.endpoint(node).read_text())["pid"])


def told(attempt: AttemptDir) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in attempt.launcher_journal.read_text().splitlines()]
    return [r for r in records if r["type"] == "agent"]


@pytest.mark.long
def test_a_killed_agent_is_started_again_and_then_serves_a_relaunch(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "150")
    view = person.wait(run, at_step(10))
    attempt = attempt_of(run, view)
    pid = agent_pid(attempt, "node2")
    table: Path = attempt.nodes / "node2.beats"
    os.kill(pid, signal.SIGKILL)
    seq = decode(table.read_bytes()).seq
    wait_for(lambda: agent_pid(attempt, "node2") != pid, "no new agent")
    wait_for(lambda: decode(table.read_bytes()).seq > seq + 1, "no new table")
    wait_for(lambda: told(attempt), "nothing in the launcher's journal")
    assert [(r["node"], r["what"]) for r in told(attempt)] == [("node2", "started again")]
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 150, 0, [])
    (incident,) = view["incidents"]
    assert [m[1] for m in incident["marks"]] == ["seen", "examined", "diagnosed", "launched", "first_step"]
    assert (attempt.logs(1) / "rank-1.log").exists()
    assert len(told(attempt)) == 1, "one agent died, and one was started"


@pytest.mark.long
def test_agent_and_rank_killed_together_are_still_a_relaunch(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "60")
    view = person.wait(run, at_step(10))
    attempt = attempt_of(run, view)
    os.kill(agent_pid(attempt, "node2"), signal.SIGKILL)
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 0)
    assert [(r["node"], r["what"]) for r in told(attempt)] == [("node2", "started again")]


@pytest.mark.long
def test_an_agent_that_hangs_is_replaced_and_writes_no_more(person: Person) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "150")
    view = person.wait(run, at_step(10))
    attempt = attempt_of(run, view)
    pid = agent_pid(attempt, "node2")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: agent_pid(attempt, "node2") != pid, "no new agent")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    view = person.wait(run, over)
    assert (view["phase"], view["incidents"]) == ("done", [])


@pytest.mark.long
def test_on_a_dead_node_no_agent_is_started(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "3", "--", *COMMAND, "--steps", "60")
    view = person.wait(run, at_step(12))
    faults.kill_node(sandbox, "node2")
    done = person.wait(run, over)
    assert (done["phase"], done["step"], done["starts"]) == ("done", 60, 1)
    records = told(attempt_of(run, view))
    assert {(r["node"], r["what"]) for r in records} == {("node2", "not started again")}
    assert "no slurmd listens on it" in records[0]["words"]


def test_what_the_agents_found_in_logs_is_in_the_attempt(person: Person) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "30", "--end", "error", "--at", "8", "--rank", "1")
    view = person.wait(run, over)
    attempt = attempt_of(run, view)
    found = [json.loads(line) for line in attempt.findings("node2").read_text().splitlines()]
    (error,) = [f for f in found if f["kind"] == "log:user_code"]
    assert (error["words"], error["rank"], error["launch"]) == ("ValueError: a wrong shape", 1, 0)
    assert view["phase"] == "done"
    (incident,) = view["incidents"]
    assert any("rank-1.log: ValueError: a wrong shape" in m[2] for m in incident["marks"] if m[1] == "examined")


@pytest.mark.long
def test_under_torchrun_the_agent_knows_its_nodes_log(person: Person) -> None:
    pytest.importorskip("torch")
    words = ("--torchrun", "--tasks-per-node", "1", "-N", "2", "--", COMMAND[1])
    run = person.start(*words, "--steps", "20", "--end", "error", "--at", "8", "--rank", "1")
    view = person.wait(run, over)
    attempt = attempt_of(run, view)
    found = [json.loads(line) for line in attempt.findings("node2").read_text().splitlines()]
    assert "ValueError: a wrong shape" in [f["words"] for f in found if f["kind"] == "log:user_code"]
    (incident,) = view["incidents"]
    assert any("node-1.log: " in m[2] for m in incident["marks"] if m[1] == "examined")
