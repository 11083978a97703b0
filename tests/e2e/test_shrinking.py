"""A run that may shrink, on a real Slurm: it continues without a lost node, in the same job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over
from e2e.test_spares import launches

from transom_cli.core import costs
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.run_record import recoveries

pytestmark = pytest.mark.sandbox
EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic" / "train.py"


def test_a_run_continues_without_a_dead_node_in_the_same_job(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2-3", "--set", "job.top_up=false", "--", *COMMAND, "--steps", "100")
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
    records = map(json.loads, run.attempt(job_id, 0).launcher_journal.read_text().splitlines())
    (compared,) = [one for one in recoveries(tuple(records), f"{job_id}.0") if one.what == "compared"]
    assert compared.situation is not None and compared.words == costs.comparison(compared.situation)
    assert compared.situation.queued is not None, "the queue of the partition was seen"
    assert [(x[0], x[1]) for x in view["excluded"]] == [("node2", "drained")]


def final_state(text: str) -> str:
    (found,) = re.findall(r"final state ([0-9a-f]{64})", text)
    return str(found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_that_shrinks_and_grows_ends_with_the_bits_of_one_that_did_not(
    person: Person, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The node that was lost comes back in the same job."""
    pytest.importorskip("torch")
    command = (sys.executable, str(EXAMPLE), "--steps", "400", "--check")
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    alone = subprocess.run(
        command, env={**env, "TRANSOM_CHECKPOINT_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    run = person.start(
        "-N", "2-4", "--set", "job.top_up=false", "--set", "isolate.drain=false", "--", *command, "--delay", "0.3"
    )
    job_id = person.wait(run, at_step(10), 180)["job_id"]
    faults.kill_node(sandbox, "node3")
    person.wait(run, lambda view: len(launches(run, job_id)) == 2 and at_step(20)(view), 180)
    faults.restore_node(sandbox, "node3")
    person.wait(run, lambda view: len(launches(run, job_id)) == 3, 240)
    view = person.wait(run, over, 400)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 400, 0)
    assert [len(nodes) for nodes in launches(run, job_id)] == [4, 3, 4]
    last = max(run.attempts.glob("*/logs/*/rank-0.log"), key=lambda path: path.stat().st_mtime)
    assert final_state(last.read_text()) == final_state(alone.stdout)
    proof = person.transom("explain", run.run_id, "--samples").stdout
    assert "19,200 samples in 400 steps" in proof and "each sample once per epoch" in proof


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nodes_of_a_top_up_job_join_the_run_and_leave_it(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2-3", "--", *COMMAND, "--steps", "900", "--delay", "0.2")
    job_id = person.wait(run, at_step(10), 180)["job_id"]
    faults.kill_node(sandbox, "node2")
    person.wait(run, lambda view: len(launches(run, job_id)) == 3, 240)
    assert launches(run, job_id)[1:] == [["node1", "node3"], ["node1", "node3", "node4"]]
    slurm = CliSlurm(Runner(env={**os.environ, **person.env}))
    own, top_up = sorted((job for job in slurm.jobs() if not job.state.ended), key=lambda job: job.job_id)
    assert (own.job_id, top_up.nodes) == (job_id, ("node4",))
    step = person.status(run)["step"]
    person.wait(run, at_step(step + 5), 120)
    ranks = [(run.attempts / f"{job_id}.0" / "logs" / "2" / f"rank-{rank}.log").read_text() for rank in range(3)]
    assert all("goes on from step" in text for text in ranks)
    slurm.cancel(top_up.job_id)
    person.wait(run, lambda view: launches(run, job_id)[3:] == [["node1", "node3"]], 240)  # as with a lost node
    faults.restore_node(sandbox, "node2")  # or the job would be completing until SlurmdTimeout
    person.transom("stop", run.run_id)
    view = person.wait(run, over, 120)
    assert [x[0] for x in view["excluded"]] == ["node2"], "nothing is held against its nodes"
    assert all(job.state.ended for job in slurm.jobs() if job.comment.startswith("transom-top-up"))
