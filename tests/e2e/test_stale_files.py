"""All of a run sees what others write late, as NFS may show it: each node by itself, and the operator.

Three seconds late whatever it is; or thirty but for what Linux' NFS asks its server anew. What a node writes it sees at
once. Ranks meet over gloo, and their checkpoints are in the run directory as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.support import PATIENCE, STEPS, Person, at_step, remembering

from transom_cli.errors import NotPermitted
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.supervise.attempt_files import newest_checkpoint

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
HOW = {"all": (3.0, False), "as_nfs": (30.0, True)}
PERSIST = 5  # every so many steps one becomes durable


@pytest.fixture(params=HOW)
def late(person: Person, sandbox: Sandbox, request: pytest.FixtureRequest) -> Person:
    """Somebody whose runs' root each node sees late; `healed_sandbox`, which `person` asks for, ends that."""
    seconds, nfs = HOW[request.param]
    try:
        faults.late_files(sandbox, person.root, seconds, nfs=nfs)
    except NotPermitted as refused:
        pytest.skip(str(refused))
    return person


def watched(
    late: Person, sandbox: Sandbox, final: Path, disturb: Callable[[RunDir], object]
) -> tuple[RunDir, dict[str, Any]]:
    """A run to its end, under an operator that sees all late too; the test itself sees the files as they are."""
    how = sandbox.late()[str(late.root)]
    view = [sys.executable, "-m", "transom_cli.sandbox.stale_view", how, str(late.root), "-"]
    run = [*view, sys.executable, "-m", "transom_cli", "run", "-N", "2", "--"]
    env = {**os.environ, **late.env, "TRANSOM_ROOT": str(late.root)}
    command = [*run, *remembering(final, "--persist", str(PERSIST))]
    with subprocess.Popen(command, env=env, cwd=late.cwd, stdin=subprocess.DEVNULL) as watching:
        try:
            found = _made(late, watching)
            disturb(found)
            assert watching.wait(2 * PATIENCE) == 0
        finally:
            watching.kill()
    told = late.status(found)
    assert (told["phase"], told["step"]) == ("done", STEPS)
    return found, told


def _made(late: Person, watching: subprocess.Popen[bytes]) -> RunDir:
    while not any(RunDir(path).journal.exists() for path in late.root.iterdir()):
        assert watching.poll() is None, "it ended before it began"
        time.sleep(0.1)
    return late.newest()


@pytest.mark.parametrize("late", ["all"], indirect=True)
def test_a_healthy_run_raises_no_alarm(late: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str) -> None:
    _, told = watched(late, sandbox, tmp_path / "final", lambda _: None)
    assert (told["incidents"], told["starts"], told["excluded"]) == ([], 0, [])
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.parametrize("late", ["all"], indirect=True)
def test_a_killed_rank_is_relaunched_in_place(late: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str) -> None:
    def kill(run: RunDir) -> None:
        view = late.wait(run, at_step(40))
        faults.kill_rank(sandbox, view["job_id"], 1)

    _, told = watched(late, sandbox, tmp_path / "final", kill)
    assert (told["starts"], told["excluded"]) == (0, [])
    assert "rank 1 on node2 killed by SIGKILL" in told["incidents"][-1]["message"]
    assert {one["result"] for one in told["incidents"]} <= {"recovered", "failed again"}
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.parametrize("node", ["node2", "node1"], ids=["a_node", "the_launchers_host"])
def test_a_dead_node_is_isolated_once_and_nothing_durable_is_lost(
    late: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str, node: str
) -> None:
    newest = -1

    def kill(run: RunDir) -> None:
        nonlocal newest
        late.wait(run, at_step(40))
        newest = newest_checkpoint(run.checkpoints)
        faults.kill_node(sandbox, node)

    run, told = watched(late, sandbox, tmp_path / "final", kill)
    assert [name for name, *_ in told["excluded"]] == [node]
    (incident,) = told["incidents"]
    assert incident["result"] == "recovered" and f"{node} lost" in incident["message"]
    marks = [what for _, what, _ in incident["marks"]]
    assert (marks.count("isolated"), marks.count("requeued"), told["starts"]) == (1, 1, 1)
    if node == "node2":
        seen = " ".join(words for _, what, words in incident["marks"] if what == "seen")
        assert "the launcher is silent" not in seen, "its account came"
    restart = 0 if node == "node1" else 1  # a job whose batch host is dead gets a successor
    log = (run.attempt(told["job_id"], restart).logs(0) / "rank-0.log").read_text()
    resumed = re.search(r"restored step-(\d+)", log)
    assert resumed is not None and int(resumed[1]) > 0 and int(resumed[1]) >= newest, log
    assert (tmp_path / "final").read_text() == undisturbed
