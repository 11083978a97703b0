"""A run that may shrink, on a real Slurm: it continues without a lost node, in the same job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over
from e2e.test_spares import launches

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic" / "train.py"


def test_a_run_continues_without_a_dead_node_in_the_same_job(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2-3", "--", *COMMAND, "--steps", "100")
    job_id = person.wait(run, at_step(10))["job_id"]
    faults.kill_node(sandbox, "node2")
    down = ["scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=as slurmctld does later"]
    subprocess.run(down, env=person.env, check=True)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 100, 0), "the job was never requeued"
    assert launches(run, job_id) == [["node1", "node2", "node3"], ["node1", "node3"]]
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered"
    assert "continues on 2 of 3 nodes, without node2" in str(incident["marks"])
    assert [(x[0], x[1]) for x in view["excluded"]] == [("node2", "drained")]


def final_state(text: str) -> str:
    (found,) = re.findall(r"final state ([0-9a-f]{64})", text)
    return str(found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_that_shrinks_and_grows_ends_with_the_bits_of_one_that_did_not(
    person: Person, sandbox: Sandbox, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    command = (sys.executable, str(EXAMPLE), "--steps", "150", "--check")
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    alone = subprocess.run(
        command, env={**env, "TRANSOM_CHECKPOINT_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    run = person.start("-N", "2-4", "--", *command, "--delay", "0.2")
    job_id = person.wait(run, at_step(10), 180)["job_id"]
    faults.kill_node(sandbox, "node3")
    person.wait(run, lambda view: len(launches(run, job_id)) == 2 and at_step(30)(view), 180)
    view = person.wait(run, over, 300)
    assert view["phase"] == "done" and view["step"] == 150
    assert launches(run, job_id)[1] == ["node1", "node2", "node4"]
    last = max(run.attempts.glob("*/logs/*/rank-0.log"), key=lambda path: path.stat().st_mtime)
    assert final_state(last.read_text()) == final_state(alone.stdout)
